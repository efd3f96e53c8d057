"""The words for codecs, on the command line and in scripts. Pure, and without numpy: the launcher reads them too.

auto   bf16   int8   topk:0.01   topk:0.01:int8   lowrank:4
"""

from __future__ import annotations

from typing import NamedTuple

from shoal.errors import UsageError

ROUNDED = ("bf16", "int8")
AUTO = "auto"
WORDS = (AUTO, *ROUNDED, "topk:FRACTION[:bf16|int8]", "lowrank:RANK")


class CodecWord(NamedTuple):
    """A codec as it was asked for: what it is, and its number, if it has one."""

    kind: str
    number: float = 0
    values: str = "float32"


def parse_word(word: str, who: str) -> CodecWord:
    """UsageError if there is no such codec. `who` is what the word was given to, as the user wrote it."""
    kind, *rest = word.split(":")
    if kind in (AUTO, *ROUNDED) and not rest:
        return CodecWord(kind)
    if kind == "topk" and rest and (len(rest) == 1 or (len(rest) == 2 and rest[1] in ROUNDED)):
        fraction = _number(rest[0])
        if fraction is None or not 0 < fraction < 1:
            raise UsageError(f"{who}: expected the part of all numbers that is sent, more than 0 and less than 1.")
        return CodecWord(kind, fraction, *rest[1:])
    if kind == "lowrank" and len(rest) == 1:
        rank = _number(rest[0])
        if rank is None or not rank.is_integer() or rank < 1:
            raise UsageError(f"{who}: expected a rank, a whole number of at least 1.")
        return CodecWord(kind, rank)
    raise UsageError(f"{who}: there is no codec of that name; there is {', '.join(WORDS)}.")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
