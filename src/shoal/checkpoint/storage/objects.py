"""Checkpoints in an object store, by fsspec: S3, GCS, Azure and whatever else it knows.

    FOLDER/step-000001234/manifest.json                     written last, at once: with it there is a checkpoint
    FOLDER/step-000001234/RUN-VIEW/part-000.safetensors     a draft's parts; its manifest names RUN-VIEW

Stores have no rename, so parts are written where they will stay. A draft has a folder of its own: when a step is
written anew, the parts that the manifest in place names are not touched until another manifest has taken its place. A
checkpoint goes with its manifest first. Stores have no locks either: whether another run still writes its draft can
only be told by age.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, final

from shoal.checkpoint import manifest
from shoal.checkpoint.addresses import Place, StoreAddress
from shoal.checkpoint.drafts import Draft, attempt_of, step_of
from shoal.checkpoint.manifest import Manifest
from shoal.checkpoint.parts import LENGTH, MAX_HEADER, Held, tensors_in_header
from shoal.checkpoint.storage.abstract import AbstractStorage, AbstractStoredFile, StoreUnreachable
from shoal.errors import BadCheckpoint, UsageError

ABANDONED_AFTER = timedelta(days=1)  # a draft of another run: nobody uploads a part for so long
ANSWERS_WITHIN = 60.0  # seconds that a store has to show that it can be written to
_RANGE = 64 * 2**20  # bytes asked for at once
_BLOCK = 16 * 2**20  # bytes sent at once, and kept in memory for it
_MOST_BLOCKS = 9000  # of a file: S3 allows 10,000


@final
class StoredObject(AbstractStoredFile):
    """An object, read by ranges."""

    def __init__(self, storage: ObjectStorage, key: str, size: int) -> None:
        self._storage = storage
        self._key = key
        self.size = size

    def tensors(self, name: str) -> Held:
        length = int.from_bytes(self._storage.range_of(self._key, 0, min(LENGTH, self.size)), "little")
        if not 0 < length <= min(MAX_HEADER, self.size) - LENGTH:
            raise BadCheckpoint(f"{name} is not a safetensors file: its header has {length:,} bytes")
        return tensors_in_header(self._storage.range_of(self._key, LENGTH, LENGTH + length), name)

    def digest(self) -> str:
        digest = hashlib.new(manifest.DIGEST)
        for chunk in self._chunks():
            digest.update(chunk)
        return digest.hexdigest()

    def read(self) -> bytes:
        return b"".join(self._chunks())

    def _chunks(self) -> Iterator[bytes]:
        for start in range(0, self.size, _RANGE):
            yield self._storage.range_of(self._key, start, min(start + _RANGE, self.size))


@final
class ObjectStorage(AbstractStorage):
    """An address in a store."""

    def __init__(self, address: StoreAddress) -> None:
        """UsageError if this kind of store is not known, or its package is not there."""
        self._address = address
        self._system = _file_system(address)

    @contextlib.contextmanager
    def claimed(self, run: str, say: Callable[[str], None]) -> Iterator[int | None]:
        self._check(run)
        say(f"{self._address} can't be locked, as a folder would be: see to it that no other run writes there")
        yield None

    def checkpoints(self) -> list[Place]:
        try:
            found = [(step, step_at) for step, step_at in self._steps() if self._size(step_at / manifest.FILE) >= 0]
        except OSError as error:
            raise UsageError(f"can't read the checkpoints in {self._address}: {error}") from error
        return [address for _, address in sorted(found, key=lambda item: -item[0])]

    def is_checkpoint(self) -> bool:
        if step_of(self._address) is not None:
            return True
        try:
            return self._size(self._address / manifest.FILE) >= 0
        except OSError as error:
            raise UsageError(f"can't read {self._address}: {error}") from error

    def look(self) -> None:
        if self._size(self._address / manifest.FILE) < 0:
            raise BadCheckpoint(f"there is no {manifest.FILE} there, which is written last")

    @contextlib.contextmanager
    def opened(self, name: str, folder: str | None = None) -> Iterator[AbstractStoredFile]:
        yield self._opened((self._address if folder is None else self._address / folder) / name)

    @contextlib.contextmanager
    def opened_part(self, draft: Draft, name: str) -> Iterator[AbstractStoredFile]:
        yield self._opened(self._parts(draft) / name)

    @contextlib.contextmanager
    def joined(self, draft: Draft) -> Iterator[None]:
        yield

    def write(self, draft: Draft, name: str, chunks: Iterable[memoryview], size: int) -> None:
        address = self._parts(draft) / name
        block = max(_BLOCK, -(-size // _MOST_BLOCKS))
        with self._asking(address):
            file = self._system.open(address.key, "wb", block_size=block)
        try:
            for chunk in chunks:
                with self._asking(address):
                    file.write(chunk)
            with self._asking(address):
                file.close()
        except BaseException:
            # Neither here nor when it is collected may it be closed: that would make an object of what was sent.
            with contextlib.suppress(Exception):
                file.discard()
            with contextlib.suppress(AttributeError):
                file.closed = True
            raise

    def folder_of_parts(self, draft: Draft) -> str | None:
        return draft.attempt

    def put_in_place(self, draft: Draft, document: bytes, parts: Sequence[str], before: Manifest | None) -> None:
        address = self._address / draft.name / manifest.FILE
        with self._asking(address):
            self._system.pipe_file(address.key, document)
        if before is not None and before.folder not in (None, draft.attempt):
            with contextlib.suppress(OSError):  # what is left is swept away when it is old
                self._remove_below(self._address / draft.name / str(before.folder))

    def discard(self, draft: Draft) -> None:
        with contextlib.suppress(OSError):
            if self._folder_named_at(self._address / draft.name) == draft.attempt:
                # It was told that the manifest was refused, but it was not.
                self._remove_one(self._address / draft.name / manifest.FILE)
            self._remove_below(self._parts(draft))

    def remove(self, checkpoint: Place) -> None:
        address = self._address / checkpoint.name
        self._remove_one(address / manifest.FILE)
        self._remove_below(address)

    def sweep(self, current: Draft) -> None:
        for step, address in self._steps():
            named = self._folder_named_at(address)
            for attempt, keys in self._attempts(address).items():
                if attempt not in (named, current.attempt) and self._is_stale(step, attempt, keys, current):
                    self._remove_keys(keys, address)

    def range_of(self, key: str, start: int, stop: int) -> bytes:
        """Bytes of an object; fewer, if it has fewer."""
        with self._asking(StoreAddress(self._address.protocol, key)):
            return bytes(self._system.cat_file(key, start=start, end=stop))

    def _check(self, run: str) -> None:
        """UsageError if nothing can be written, read and removed here, or nobody answers in time."""
        outcome: list[Exception | None] = []
        probe = threading.Thread(target=lambda: outcome.append(self._probed(run)), name="store probe", daemon=True)
        probe.start()
        probe.join(ANSWERS_WITHIN)
        why = outcome[0] if outcome else f"it has not answered within {ANSWERS_WITHIN:.0f} s"
        if why is not None:
            raise UsageError(
                f"can't write checkpoints to {self._address}: {why}. Look at the address, at the credentials, and at "
                "whether this host can reach the store."
            )

    def _probed(self, run: str) -> Exception | None:
        address = self._address / f".probe-{run}"
        try:
            with self._asking(address):
                self._system.pipe_file(address.key, run.encode())
            if self.range_of(address.key, 0, len(run)) != run.encode():
                return StoreUnreachable("what was written there is not what is read")
            self._remove_one(address)
        except Exception as error:
            return error
        return None

    def _steps(self) -> list[tuple[int, StoreAddress]]:
        """All that has a step's name, whole or not."""
        with self._asking(self._address):
            try:
                listed = self._system.ls(self._address.key, detail=False)
            except FileNotFoundError:
                return []
        names = {str(key).rstrip("/").rpartition("/")[2] for key in listed}
        found = ((step_of(self._address / name), self._address / name) for name in names)
        return [(step, address) for step, address in found if step is not None and not address.name.endswith(".old")]

    def _attempts(self, checkpoint: StoreAddress) -> dict[str, list[str]]:
        """The objects of each draft of a step, published or not."""
        found: dict[str, list[str]] = {}
        for key in self._keys(checkpoint):
            # From the end: what comes before the bucket's name differs from store to store.
            above, _, _ = key.rpartition("/")
            if above.rpartition("/")[0].endswith(checkpoint.name):
                found.setdefault(above.rpartition("/")[2], []).append(key)
        return found

    def _is_stale(self, step: int, attempt: str, keys: Sequence[str], current: Draft) -> bool:
        run, view = attempt_of(attempt)
        if run == current.run:
            return (step, view) < (current.step, current.view)
        return run is not None and all(self._age(key) > ABANDONED_AFTER for key in keys)

    def _age(self, key: str) -> timedelta:
        try:
            with self._asking(self._address):
                changed: datetime = self._system.modified(key)
        except (OSError, NotImplementedError):
            return timedelta(0)  # it can't tell: better a draft too many
        return datetime.now(UTC) - (changed if changed.tzinfo is not None else changed.replace(tzinfo=UTC))

    def _folder_named_at(self, checkpoint: StoreAddress) -> str | None:
        """Where a checkpoint's manifest says that its parts are; None if there is none, or it is not sound."""
        address = checkpoint / manifest.FILE
        size = self._size(address)
        if not 0 <= size <= manifest.MAX_BYTES:
            return None
        try:
            return manifest.decode(self.range_of(address.key, 0, size)).folder
        except BadCheckpoint:
            return None

    def _parts(self, draft: Draft) -> StoreAddress:
        return self._address / draft.name / draft.attempt

    def _opened(self, address: StoreAddress) -> StoredObject:
        size = self._size(address)
        if size < 0:
            raise BadCheckpoint(f"{address.name} is missing")
        return StoredObject(self, address.key, size)

    def _size(self, address: StoreAddress) -> int:
        """Of an object; -1 if there is none."""
        with self._asking(address):
            try:
                found = self._system.info(address.key)
            except FileNotFoundError:
                return -1
        return int(found["size"]) if found["type"] == "file" else -1

    def _keys(self, address: StoreAddress) -> list[str]:
        with self._asking(address):
            try:
                return [str(key) for key in self._system.find(address.key)]
            except FileNotFoundError:
                return []

    def _remove_one(self, address: StoreAddress) -> None:
        with self._asking(address), contextlib.suppress(FileNotFoundError):
            self._system.rm_file(address.key)

    def _remove_below(self, address: StoreAddress) -> None:
        self._remove_keys(self._keys(address), address)

    def _remove_keys(self, keys: Sequence[str], address: StoreAddress) -> None:
        with self._asking(address), contextlib.suppress(FileNotFoundError):
            if keys:
                self._system.rm([*keys])

    @contextlib.contextmanager
    def _asking(self, address: StoreAddress) -> Iterator[None]:
        """Every store's library has errors of its own."""
        try:
            yield
        except StoreUnreachable:
            raise
        except NotImplementedError:
            raise
        except Exception as error:
            raise StoreUnreachable(_explained(error, address)) from error


def _explained(error: Exception, address: StoreAddress) -> str:
    text = str(error).strip().rstrip(".") or type(error).__name__
    if isinstance(error, FileNotFoundError):
        bucket = StoreAddress(address.protocol, address.key.partition("/")[0])
        return f"there is no {bucket}, or nothing there that may be seen ({text})"
    if isinstance(error, PermissionError):
        return f"the store refuses these credentials ({text})"
    return text if isinstance(error, OSError) else f"{type(error).__name__}: {text}"


def _file_system(address: StoreAddress) -> Any:
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise UsageError(
            f"{address} is in an object store, which needs fsspec. Install it with `pip install 'shoal[fsspec]'`."
        ) from None
    try:
        # An instance of our own, which remembers no listings: others write there, too.
        return url_to_fs(str(address), use_listings_cache=False)[0]
    except ImportError as error:
        raise UsageError(f"{address} needs another package: {error}.") from error
    except Exception as error:
        raise UsageError(f"can't use {address}: {error}.") from error
