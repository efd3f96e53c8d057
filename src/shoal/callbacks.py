"""Keras callbacks that know of the run that they are called in."""

from __future__ import annotations

from shoal import session
from shoal.hook.monitor import Monitor, TensorBoardScalars

__all__ = ["Monitor", "TensorBoardScalars"]

session.current()  # they mean something only where keras is hooked
