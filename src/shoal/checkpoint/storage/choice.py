"""Which storage a place is in: the only place that asks."""

from __future__ import annotations

from pathlib import Path

from shoal.checkpoint.addresses import Place
from shoal.checkpoint.storage.abstract import AbstractStorage
from shoal.checkpoint.storage.local import LocalStorage


def storage_of(place: Place) -> AbstractStorage:
    """Of a folder of checkpoints, or of one of them."""
    if isinstance(place, Path):
        return LocalStorage(place)
    from shoal.checkpoint.storage.objects import ObjectStorage

    return ObjectStorage(place)
