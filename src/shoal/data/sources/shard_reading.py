"""One shard of a stream: read batch after batch in the background, and opened again where another worker left it.

What can say where it stands (`get_state` and `set_state`, as Grain's iterators, or `state_dict` and
`load_state_dict`, as Hugging Face's data sets) is continued there. Of anything else, what others have used is read and
dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec

from shoal.data.columns import Rows
from shoal.data.sources.naming import noting

STATE_EVERY = 16  # batches from one state that is kept to the next: whoever continues a shard skips fewer
_STATE_LIMIT = 2**16  # bytes of a state: all workers keep those of all shards
_VERBS = (("get_state", "set_state"), ("state_dict", "load_state_dict"))

SavedState = tuple[int, bytes]  # the number of the batch that comes next, and the state


class OpenShard:
    """A pass over a shard's data. A state is taken between two batches."""

    def __init__(self, data: Any, state: bytes | None = None) -> None:
        set_it = _verbs(data)[1]
        if state is not None and set_it:
            set_it(msgspec.msgpack.decode(state, strict=False))
        self._iterator: Iterator[Any] = iter(data)
        own_get, own_set = _verbs(self._iterator)
        if state is not None and not set_it and own_set:
            own_set(msgspec.msgpack.decode(state, strict=False))
        self._get = own_get or _verbs(data)[0]

    def read(self) -> Any | None:
        return next(self._iterator, None)

    def state(self) -> bytes | None:
        """Where it stands; None if it can't say, or only in ways that do not travel."""
        return _encoded(self._get()) if self._get is not None else None


class ShardReading:
    """A shard's batches by number, each asked for in order; the last one that was used may be asked for again."""

    def __init__(
        self,
        shard: int,
        open_data: Callable[[], Any],
        convert: Callable[[Any], Rows],
        pool: ThreadPoolExecutor,
        saved: SavedState | None = None,
    ) -> None:
        self.shard = shard
        self._open_data = open_data
        self._convert = convert
        self._pool = pool
        self._saved = saved
        self._batches: dict[int, Future[Rows | None]] = {}
        self._states: dict[int, bytes] = {}
        # Of the pool's only thread:
        self._opened: OpenShard | None = None
        self._at = saved[0] if saved is not None else 0
        self._dropped = False

    def can_give(self, number: int) -> bool:
        """Whether it need not be opened again for this batch."""
        first = min(self._batches) if self._batches else self._at
        return number >= first

    def ahead(self, number: int) -> None:
        """Begin to read this batch. Those that come before it, if they were never asked for, are dropped."""
        if number not in self._batches:
            self._batches[number] = self._pool.submit(self._read, number)

    def batch(self, number: int) -> Rows | None:
        """Waits for it. None: the shard has ended."""
        self.ahead(number)
        return self._batches[number].result()

    def state(self, number: int) -> bytes | None:
        """The one that was taken before this batch was read, if there is one."""
        return self._states.get(number)

    def forget(self, below: int) -> None:
        for number in [each for each in self._batches if each < below]:
            del self._batches[number]
            self._states.pop(number, None)

    def drop(self) -> None:
        """Lets go of everything, in the background: to end an iterator may take its time."""
        self._dropped = True
        for future in self._batches.values():
            future.cancel()
        self._pool.submit(self._close)

    def _close(self) -> None:
        self._opened = None

    def _read(self, number: int) -> Rows | None:
        if self._dropped:
            return None
        with noting(lambda: f"reading batch {number} of shard {self.shard}"):
            if self._opened is None:
                self._opened = OpenShard(self._open_data(), self._saved[1] if self._saved is not None else None)
            while self._at < number and not self._dropped:
                self._opened.read()
                self._at += 1
            if number and number % STATE_EVERY == 0 and (state := self._opened.state()) is not None:
                self._states[number] = state
            batch = self._opened.read()
            self._at += 1
            return self._convert(batch) if batch is not None else None


def _verbs(data: Any) -> tuple[Callable[[], Any] | None, Callable[[Any], Any] | None]:
    for get, put in _VERBS:
        if callable(getattr(data, get, None)) and callable(getattr(data, put, None)):
            return getattr(data, get), getattr(data, put)
    return None, None


def _encoded(state: Any) -> bytes | None:
    """As plain data that comes back the same; None of anything else."""
    try:
        encoded = msgspec.msgpack.encode(state)
        same = bool(msgspec.msgpack.decode(encoded, strict=False) == state)
    except Exception:  # arrays and objects, which may refuse to be encoded or compared in any way
        return None
    return encoded if same and len(encoded) <= _STATE_LIMIT else None
