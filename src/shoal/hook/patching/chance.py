"""What a script leaves to chance is alike on all workers of a run.

Every worker runs the script. Without this each would shuffle, split and make its data by random numbers of its own.

    Python's and numpy's global numbers         seeded before the script begins
    numpy's generators without a seed           `np.random.default_rng()` and its kin ask the system for entropy; here
                                                they get the run's, number after number
    TensorFlow's and torch's global numbers     seeded when the script imports them

A script's own seeds count more. A worker that comes late has the same numbers from its start. Other threads and child
processes ask the system, as ever: they come in no order that all workers share, and often are meant to differ.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Callable

import numpy as np

from shoal.hook.patching.on_import import when_imported


def leave_nothing_to_chance(seed: int) -> None:
    """From now on, in this process."""
    random.seed(seed)
    np.random.seed(seed)
    _share_entropy(seed)
    when_imported("tensorflow", lambda: sys.modules["tensorflow"].random.set_seed(seed))
    when_imported("torch", lambda: sys.modules["torch"].manual_seed(seed))


def _share_entropy(seed: int) -> None:
    """Where numpy asks for entropy. A private name: without it unseeded generators differ, and `fit` will notice."""
    from numpy.random import bit_generator

    ask = getattr(bit_generator, "randbits", None)
    if ask is not None:
        bit_generator.randbits = _RunsEntropy(seed, ask)  # type: ignore[attr-defined]


class _RunsEntropy:
    """Random bits that all workers of a run get in the same order."""

    def __init__(self, seed: int, ask_system: Callable[[int], int]) -> None:
        self._numbers = random.Random(f"entropy {seed}")
        self._ask_system = ask_system
        self._process = os.getpid()

    def __call__(self, bits: int) -> int:
        if threading.current_thread() is threading.main_thread() and os.getpid() == self._process:
            return self._numbers.getrandbits(bits)
        return self._ask_system(bits)
