"""Where a checkpoint was taken: in which call of the script, and what the calls before it returned.

A run that goes on from a checkpoint runs its script from the beginning. The calls before it return at once what they
returned then; the fit that it was taken in goes on from its state.
"""

from __future__ import annotations

import base64
from typing import Any, NamedTuple

from shoal.checkpoint.addresses import Place
from shoal.checkpoint.read import describe
from shoal.errors import BadCheckpoint


class Resumed(NamedTuple):
    """A checkpoint to go on from."""

    path: Place
    call: int
    returned: dict[int, bytes]
    forgotten: int = 0  # calls with smaller numbers may not be among those


def look_into(path: Place) -> Resumed:
    """What a checkpoint of a fit says about where it was taken. Who loads it looks at the rest."""
    header = describe(path).header
    try:
        returned = {int(call): to_bytes(text) for call, text in header["returned"].items()}
        return Resumed(path, int(header["call"]), returned, int(header.get("forgotten", 0)))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadCheckpoint(f"it was not taken in a fit: {error!r} in its header", path) from error


def to_text(data: bytes) -> str:
    """For a header, which is JSON."""
    return base64.b64encode(data).decode()


def to_bytes(text: Any) -> bytes:
    return base64.b64decode(text, validate=True)
