"""The one interface of what writes gradients in another form: for the sums of workers, and for pushes to servers.

    sender     gradients, state ──encode──▶ encoded, the next state ··wire··▶ receiver
    receiver                                encoded ──decode──▶ gradients      (a server applies them)
                                            encoded ──add──▶ into a sum        (a worker that sums)

A receiver knows before what arrives, to the byte (`shapes`), as without a codec. So a form whose size depends on the
values is not possible; the largest k of n values are. `decode` and `add` give the same for the same, everywhere:
replicas, and workers, stay equal by it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from shoal.codecs.rounding import AbstractRounding
from shoal.codecs.shapes import Array, Shapes


class AbstractCodec(ABC):
    """One way to write gradients. It holds no state: that is handed over."""

    @property
    @abstractmethod
    def is_identity(self) -> bool:
        """Whether gradients travel as they are: then nobody need encode or decode anything."""

    @property
    def rounding(self) -> AbstractRounding | None:
        """How every node of the tree of sums is rounded; None for codecs that do otherwise."""
        return None

    @property
    def by_slot(self) -> AbstractSlotCodec | None:
        """The codec itself, if it encodes each piece's gradients with what it left out of that piece's before."""
        return None

    @property
    def is_auto(self) -> bool:
        """Whether which codec it is, is chosen while training goes on, by what is measured."""
        return False

    @property
    def needs_matrices(self) -> bool:
        """Whether it does nothing for arrays that are cut into slices."""
        return False

    @abstractmethod
    def shapes(self, gradients: Shapes) -> Shapes:
        """What gradients of these shapes become."""

    @abstractmethod
    def encode(self, gradients: Sequence[Array], state: Any) -> tuple[list[Array], Any]:
        """Gradients as they travel, and the state for the next ones of the same variables on this worker.

        `state` is None at first. It is the place for what was left out (error feedback).
        """

    @abstractmethod
    def decode(self, encoded: Sequence[Array], gradients: Shapes) -> list[Array]:
        """Gradients of these shapes. `encoded` has the right types and sizes, but may say anything: BadFrame for what
        no encoder gives.
        """

    @abstractmethod
    def add(self, encoded: Sequence[Array], sums: Sequence[Array]) -> None:
        """Adds what is encoded to arrays of the gradients' shapes, in place. BadFrame as for `decode`."""


class AbstractSlotCodec(AbstractCodec):
    """A codec that leaves much out, and sends it later. What is left out belongs to a slot: one piece's gradients."""

    @property
    def is_identity(self) -> bool:
        return False

    @abstractmethod
    def encode_slot(
        self, gradients: Sequence[Array], before: Sequence[Array] | None, after: Sequence[Array], scale: float = 1.0
    ) -> list[Array]:
        """What travels of a slot's gradients, given what was left out `before` (None: nothing). Writes to `after` what
        is left out now, flat float32 arrays of the gradients' sizes. `scale`: of the loss that these gradients are of;
        what is left out is kept as of a loss that is not scaled.
        """


class AsTheyAre(AbstractCodec):
    """The identity: gradients travel as they are. Nothing is copied.

    With `auto`, until something else is measured to be faster.
    """

    def __init__(self, auto: bool = False) -> None:
        self._auto = auto

    @property
    def is_auto(self) -> bool:
        return self._auto

    @property
    def is_identity(self) -> bool:
        return True

    def shapes(self, gradients: Shapes) -> Shapes:
        return gradients

    def encode(self, gradients: Sequence[Array], state: Any) -> tuple[list[Array], Any]:
        return list(gradients), state

    def decode(self, encoded: Sequence[Array], gradients: Shapes) -> list[Array]:
        return list(encoded)

    def add(self, encoded: Sequence[Array], sums: Sequence[Array]) -> None:
        for array, total in zip(encoded, sums, strict=True):
            total += array


AS_THEY_ARE = AsTheyAre()
