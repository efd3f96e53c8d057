"""How the tensors of a checkpoint are called. Pure.

    trainable/0/dense/kernel                                        kind, number among its kind, and path
    optimizer/3/adam/dense_kernel_momentum[4096:8192 of 64x128]     some of its elements, where nobody holds all of them
    table/0/users[1000000x8]/0 of 2/rows                            a part of a table that lives on servers
    outer/1/sgd/dense_kernel_momentum                               of LocalSGD's outer optimizer
    replica 2/3/adam/dense_kernel_momentum                          of replica 2's optimizer; 0's are "optimizer"
    weights of replica 2/0/dense/kernel                             where replicas do not begin rounds with the same
    left out 0 of 3/1                                               by a codec, of piece 3, in part 0 of every step
    callback/2                                                      without a path
    seeds                                                           the only one of its kind

Elements are counted as if a tensor had one dimension. Of a table there are, in every part:

    ids         which of its rows were ever updated
    rows        those
    kept 0      what the optimizer keeps for each of them, array by array
    shared 0    what it keeps for all together, as its count of updates
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

TRAINABLE, STATE, OPTIMIZER, METRIC, CALLBACK, TABLE = "trainable", "state", "optimizer", "metric", "callback", "table"
SEEDS = "seeds"
OUTER = "outer"
_REPLICA = "replica "
_WEIGHTS = "weights of replica "
_LEFT_OUT = re.compile(r"left out (\d{1,9}) of (\d{1,9})")

_PIECE = re.compile(r"(.+)\[(\d{1,18}):(\d{1,18}) of (\d{1,18}(?:x\d{1,18}){0,63})\]", re.DOTALL)
_TABLE_PART = re.compile(
    r"table/(\d{1,9})/(.+)\[(\d{1,18})x(\d{1,18})\]/(\d{1,9}) of (\d{1,9})/(?:ids|rows|(?:kept|shared) \d+)"
)


class TensorName(NamedTuple):
    """What a name says of a whole tensor."""

    kind: str
    number: int
    path: str = ""

    def __str__(self) -> str:
        return "/".join(filter(None, (self.kind, str(self.number), self.path)))

    @classmethod
    def of(cls, name: str) -> TensorName:
        kind, _, rest = name.partition("/")
        number, _, path = rest.partition("/")
        return cls(kind, int(number), path) if number.isdecimal() else cls(kind, 0, rest)


def kind_of_replica(replica: int) -> str:
    """The kind of its optimizer's variables. The first one's are what any other training would go on from."""
    return f"{_REPLICA}{replica}" if replica else OPTIMIZER


def replica_of(kind: str) -> int | None:
    """Whose optimizer's variables are of this kind; None of a replica's but the first's."""
    number = kind.removeprefix(_REPLICA)
    return int(number) if kind.startswith(_REPLICA) and number.isdecimal() else None


def kind_of_replicas_weights(replica: int) -> str:
    """The kind of its own weights, in the middle of an epoch of a training in which replicas go on with theirs."""
    return f"{_WEIGHTS}{replica}"


def are_replicas_weights(kind: str) -> bool:
    return kind.startswith(_WEIGHTS)


def kind_of_left_out(part: int, piece: int) -> str:
    """The kind of what a codec has left out of a piece's gradients, in one part of each step."""
    return f"left out {part} of {piece}"


def left_out_of(kind: str) -> tuple[int, int] | None:
    """The part and the piece of such a kind; None of another."""
    found = _LEFT_OUT.fullmatch(kind)
    return (int(found[1]), int(found[2])) if found is not None else None


class Piece(NamedTuple):
    """The elements from `start` to `stop` of a tensor."""

    whole: str
    start: int
    stop: int
    shape: tuple[int, ...]  # of the whole

    @property
    def name(self) -> str:
        return f"{self.whole}[{self.start}:{self.stop} of {'x'.join(map(str, self.shape))}]"


def piece_of(name: str) -> Piece | None:
    """What a tensor's name says, if it is one of several pieces."""
    found = _PIECE.fullmatch(name)
    if found is None:
        return None
    return Piece(found[1], int(found[2]), int(found[3]), tuple(map(int, found[4].split("x"))))


class TablePart(NamedTuple):
    """A part of a table."""

    number: int  # of the table, in the model
    table: str
    rows: int
    width: int
    part: int
    parts: int

    @property
    def prefix(self) -> str:
        return f"{TABLE}/{self.number}/{self.table}[{self.rows}x{self.width}]/{self.part} of {self.parts}/"


def table_part_of(name: str) -> TablePart | None:
    """Which part a tensor belongs to, if it is of a table."""
    found = _TABLE_PART.fullmatch(name)
    if found is None:
        return None
    return TablePart(int(found[1]), found[2], *(int(found[group]) for group in (3, 4, 5, 6)))


def tables_in(names: Iterable[str]) -> dict[int, TablePart]:
    """The tables of which there are rows, each by one of its parts."""
    return {part.number: part for name in names if (part := table_part_of(name)) is not None}
