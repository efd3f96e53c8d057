"""Trains on JAX; every worker writes how many programs it did not find in the compilation cache.

count_compilations.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import keras
import models

import shoal

missed: list[str] = []
jax.monitoring.register_event_listener(
    lambda event, **_: missed.append(event) if event == "/jax/compilation_cache/cache_misses" else None
)
keras.utils.set_random_seed(1)
model = models.compile_for_classes(models.convolution(), "adam")
x, y = models.images()
model.fit(x, y, batch_size=10, verbose=0)
Path(sys.argv[1], f"compiled-{shoal.rank()}").write_text(str(len(missed)))
