"""Legacy `tf_keras` under `ParameterServerStrategy`: a chief, workers and a server, told apart by TF_CONFIG.

Runs in an environment of its own (requirements-tf-keras.txt): Keras 3 does not support this strategy. Workers and
servers are plain `tf.distribute.Server`s; the chief's `Model.fit` hands out one step after the other, each a batch of
one worker, asynchronously. It refuses callbacks of single batches, so a slice is made of epochs.
"""

from __future__ import annotations

import argparse
from typing import Any

import tensorflow as tf
import tf_keras
from gate import Gate
from models import SAMPLES_PER_WORKER, build, data

STEPS = 40  # of an epoch: at its end the workers wait for each other


class Pause(tf_keras.callbacks.Callback):
    """Holds training after an epoch until the bench says go."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self._gate = gate

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        if epoch:
            self._gate.step(0)  # nothing is going on: the clock starts here

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self._gate.step(STEPS)


def serve(resolver: Any) -> None:
    """A worker or a server, until it is ended."""
    tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol=resolver.rpc_layer or "grpc",
        start=True,
    ).join()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--model", choices=("mlp", "conv"), default="mlp")
    options.add_argument("--samples", type=int, default=SAMPLES_PER_WORKER, help="per worker and step")
    options.add_argument("--gate")
    given = options.parse_args()
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type != "chief":
        serve(resolver)
        return
    gate = Gate(given.gate)
    strategy = tf.distribute.ParameterServerStrategy(resolver)

    def batches(context: Any) -> tf.data.Dataset:
        samples = tf.data.Dataset.from_tensor_slices(data(given.model, given.samples))
        return samples.batch(given.samples, drop_remainder=True).cache().repeat().prefetch(2)

    with strategy.scope():
        model = build(tf_keras, given.model)
    creator = tf_keras.utils.experimental.DatasetCreator(batches)
    model.fit(creator, steps_per_epoch=STEPS, epochs=10**6, verbose=0, callbacks=[Pause(gate)])


if __name__ == "__main__":
    main()
