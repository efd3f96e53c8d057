"""The script's calls of fit, evaluate and predict, counted: what each returned is kept for workers that come late.

A late worker runs the script from its beginning. The calls that are over for the others return to it what they returned
to them, at once; the fit that is going on lets it in.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from shoal.checkpoint.resumed import Resumed
from shoal.cluster.member import Seat
from shoal.cluster.messages import NOT_KEPT, RESULT_LIMIT
from shoal.collectives.arrays import ArraySpec
from shoal.data.structure import flatten, rebuild
from shoal.errors import UsageError


class Calls:
    """The calls of one worker's script, counted from 0, and what those returned that are over."""

    def __init__(
        self,
        seat: Seat | None = None,
        resumed: Resumed | None = None,
        is_late: Callable[[], bool] = lambda: False,
        say: Callable[[str], None] = lambda doing: None,
    ) -> None:
        self.number = 0  # how many there have been; a newcomer is told it by others
        self.returned: dict[int, bytes] = {}
        self._seat = seat
        self._resumed = resumed
        self._is_late = is_late
        self._say = say
        self._depth = 0

    @property
    def going_on(self) -> bool:
        return self._depth > 0

    def count(
        self,
        live: Callable[[int], Any],
        write: Callable[[Any], bytes],
        read: Callable[[bytes], Any],
        waits: bool = True,
    ) -> Any:
        """One call: done (`live`, with its number), or read from what is kept of it.

        `waits`: a late worker waits until it is over for the others. In a fit it may be let in instead. Calls within
        calls (a callback that evaluates) are counted, but not kept.
        """
        call = self.number
        self.number += 1
        self._depth += 1
        returned = None
        try:
            returned = self._replayed(call, waits)
            if returned is not None:
                return read(returned)
            value = live(call)
            returned = write(value)
            return value
        finally:
            self._depth -= 1
            if self._depth == 0 and returned is not None and not self._is_late():
                self._keep(call, returned)

    @property
    def is_resumed(self) -> bool:
        """Whether the run goes on from a checkpoint."""
        return self._resumed is not None

    def resumes(self, call: int) -> Path | None:
        """The checkpoint to go on from, if it was taken in this call."""
        return self._resumed.path if self._resumed is not None and self._resumed.call == call else None

    def unpack(self, kept: bytes) -> bytes:
        """What is kept, for one who came late, of a call that is over for the others."""
        result = self._unpack(kept)
        if result == NOT_KEPT:
            raise UsageError(
                "this worker came too late: a call of the script (usually of predict) returned too much to be kept for "
                "those who were not there"
            )
        return result

    def _keep(self, call: int, result: bytes) -> None:
        kept = msgspec.msgpack.encode((self.number, result))
        if len(kept) > RESULT_LIMIT:
            kept = msgspec.msgpack.encode((self.number, NOT_KEPT))
        self.returned[call] = kept
        if self._seat is not None:
            self._seat.finished(call, kept)

    def _replayed(self, call: int, waits: bool) -> bytes | None:
        """What a call returned that is over already: before the checkpoint, or for those who were not late."""
        if self._resumed is not None and call in self._resumed.returned:
            returned = self._unpack(self._resumed.returned[call])
            if returned == NOT_KEPT:
                raise UsageError(
                    f"can't resume from {self._resumed.path}: call {call} of the script (counted from 0, over fit, "
                    "evaluate and predict) returned too much to be kept in a checkpoint. Resume in a script without it."
                )
            return returned
        if not (waits and self._is_late()):
            return None
        assert self._seat is not None, "only a member of a run can be late"
        self._say(f"waiting until call {call} of the script is over for the others")
        while (kept := self._seat.wait_result_or_view(call, self._seat.view.number)) is None:
            pass
        return self.unpack(kept)

    def _unpack(self, kept: bytes) -> bytes:
        """The next call gets the number that it has for the others."""
        self.number, result = msgspec.msgpack.decode(kept, type=tuple[int, bytes])
        return result


def encode_plain(value: Any) -> bytes:
    """Numbers, texts and nests of them; not as JSON, which has no infinity."""
    return msgspec.msgpack.encode(value, enc_hook=lambda odd: np.asarray(odd).tolist())


def decode_plain(kept: bytes) -> Any:
    return msgspec.msgpack.decode(kept)


def encode_predictions(predictions: Any) -> bytes:
    leaves, skeleton = flatten(predictions)
    arrays = [np.asarray(leaf) for leaf in leaves]
    if sum(array.nbytes for array in arrays) > RESULT_LIMIT:
        return NOT_KEPT
    return msgspec.msgpack.encode((skeleton, [(ArraySpec.of(array), array.tobytes()) for array in arrays]))


def decode_predictions(kept: bytes) -> Any:
    skeleton, leaves = msgspec.msgpack.decode(kept, type=tuple[Any, list[tuple[ArraySpec, bytes]]])
    arrays = [np.frombuffer(raw, np.dtype(spec.dtype)).reshape(spec.shape).copy() for spec, raw in leaves]
    return rebuild(skeleton, arrays)
