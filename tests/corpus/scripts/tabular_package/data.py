"""The data of train.py."""

import numpy as np


def load_split(seed, count=400):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 12)).astype("float32")
    y = (x[:, 0] + x[:, 1] * x[:, 2] > 0).astype("float32")[:, None]
    cut = count * 4 // 5
    return (x[:cut], y[:cut]), (x[cut:], y[cut:])
