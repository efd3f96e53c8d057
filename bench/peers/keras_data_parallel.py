"""`keras.distribution.DataParallel` on JAX: one process, two virtual CPU devices, two cores."""

from __future__ import annotations

import argparse

import jax
import keras
from gate import Gate
from models import SAMPLES_PER_WORKER, build, data
from plain_keras import Pause


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--model", choices=("mlp", "conv"), default="mlp")
    options.add_argument("--gate")
    given = options.parse_args()
    gate = Gate(given.gate)
    devices = len(jax.devices())  # XLA_FLAGS=--xla_force_host_platform_device_count=2
    assert devices == 2, f"expected 2 virtual devices, found {devices}"
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    batch = SAMPLES_PER_WORKER * devices
    x, y = data(given.model, batch)
    model = build(keras, given.model)
    model.fit(x, y, batch_size=batch, epochs=10**6, verbose=0, callbacks=[Pause(gate)])


if __name__ == "__main__":
    main()
