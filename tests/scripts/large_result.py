"""Predicts more than is kept for those who come late, then trains a little."""

from __future__ import annotations

import models
import numpy as np

x, y = models.images()
model = models.compile_for_classes(models.dense(), "sgd")
model.predict(np.tile(x, (600, 1, 1, 1)), batch_size=1000, verbose=0)
model.fit(x, y, batch_size=16, verbose=0)
