"""Checkpoints with parameter servers: workers write the weights and where they stand, servers their optimizer's state.

The chief sees to it that nothing changes, has every server copy what it leads (store/decisions/saves.py), and makes one
checkpoint of all their parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from shoal.checkpoint.addresses import Place, place_of
from shoal.checkpoint.drafts import Draft
from shoal.checkpoint.manifest import CheckpointPart
from shoal.checkpoint.publish import NotWritten
from shoal.checkpoint.read import describe
from shoal.checkpoint.resumed import look_into
from shoal.checkpoint.storage.choice import storage_of
from shoal.checkpoint.writer import Writer, Written
from shoal.config import Saving
from shoal.errors import BadCheckpoint, UsageError
from shoal.store.client import Client
from shoal.store.decisions.saves import Gathering
from shoal.store.decisions.worker_state import Rest
from shoal.store.values.tensors import Tensors
from shoal.strategies.schema import Array


class _What(msgspec.Struct, frozen=True, array_like=True):
    """A draft, as it travels to the servers."""

    folder: str
    run: str
    step: int
    view: int


class ServersParts:
    """What the servers write of a checkpoint, as the chief sees it."""

    def __init__(self, client: Callable[[], Client]) -> None:
        self._client = client
        self._gathering: Gathering | None = None

    def begin(self, draft: Draft, first: int, rest: Rest | None) -> None:
        """Returns when the servers' shards may change again. `first`: the number of their first part."""
        what = msgspec.msgpack.encode(_What(str(draft.folder), draft.run, draft.step, draft.view))
        self._gathering = self._client().save(what, first, rest)

    def poll(self, seconds: float = 0.0) -> list[CheckpointPart] | str | None:
        """All parts, or why there are none; None if that is open after so many seconds."""
        if self._gathering is None:
            return []
        told = self._client().saved(self._gathering, seconds)
        if not isinstance(told, list):
            return told
        try:
            return [msgspec.msgpack.decode(part, type=CheckpointPart) for part in told]
        except msgspec.MsgspecError as error:
            return f"a server told something else than its part: {error}"

    def kept(self, step: int) -> None:
        """The checkpoint of this step is in its place."""
        self._client().kept(step)


class CheckpointShardWriter:
    """A server's hand in the checkpoints of a fit."""

    def __init__(self, arrays_of: Callable[[int, Tensors], dict[str, Array]]) -> None:
        """`arrays_of`: what is to be written of a shard, where it lies, by name."""
        self._arrays_of = arrays_of
        self._writer = Writer()

    def copy(self, shards: Mapping[int, Tensors], place: int, what: bytes) -> str:
        try:
            draft = msgspec.msgpack.decode(what, type=_What)
        except msgspec.MsgspecError as error:
            return f"it was not told what to write: {error}"
        if self._writer.busy:
            return "it still writes the checkpoint before"
        arrays: dict[str, Array] = {}
        for number, tensors in shards.items():
            arrays |= self._arrays_of(number, tensors)
        try:
            self._writer.begin(Draft(place_of(draft.folder), draft.run, draft.step, draft.view), place, arrays)
        except UsageError as error:
            return str(error)
        return ""

    def poll(self) -> bytes | str | None:
        match self._writer.poll():
            case Written(_, part):
                return msgspec.msgpack.encode(part)
            case NotWritten(_, why):
                return why
        return None

    def close(self) -> None:
        self._writer.close()


def restore(saving: Saving | None, call: int, resumed: Place | None, read: Callable[[Place], None]) -> bool:
    """Has a shard read what the last checkpoint of this fit has for it: of this run, or of the one that it goes on
    from. Whether there is one.
    """
    for path in storage_of(place_of(saving.folder)).checkpoints() if saving is not None else []:
        try:
            if saving is not None and describe(path).run == saving.run and look_into(path).call == call:
                read(path)
                return True
        except BadCheckpoint:
            continue  # the one before may be whole
    if resumed is not None:
        read(resumed)
    return resumed is not None
