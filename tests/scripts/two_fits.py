"""Two fits of eight steps each.

two_fits.py
"""

from __future__ import annotations

import models

model = models.compile_for_classes(models.dense(), "sgd")
x, y = models.images()
for _ in range(2):
    model.fit(x[:64], y[:64], batch_size=16, epochs=2, verbose=0)
