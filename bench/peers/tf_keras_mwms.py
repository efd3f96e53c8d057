"""Legacy `tf_keras` under `MultiWorkerMirroredStrategy`: one process per worker, told apart by TF_CONFIG.

Runs in an environment of its own (requirements-tf-keras.txt): Keras 3 does not support this strategy. Settings tried
and kept: gradients in packs of 4 MB, which overlap with the backward pass, nearly double the MLP's speed over the
default of one pack (1 and 2 MB are level, 8 and 17 MB slower); the ring over gRPC is level with the automatic choice.
"""

from __future__ import annotations

import argparse
import json
import os

import tensorflow as tf
import tf_keras
from gate import Gate
from models import SAMPLES_PER_WORKER, build, data


class Pause(tf_keras.callbacks.Callback):
    """Holds training after a step until the bench says go."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self._gate = gate

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        self._gate.step()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--model", choices=("mlp", "conv"), default="mlp")
    options.add_argument("--gate")
    given = options.parse_args()
    gate = Gate(given.gate)
    ring = tf.distribute.experimental.CommunicationImplementation.RING
    packs = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=4 << 20, implementation=ring)
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=packs)
    workers = len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])
    batch = SAMPLES_PER_WORKER * workers
    samples = tf.data.Dataset.from_tensor_slices(data(given.model, batch))
    sharding = tf.data.Options()
    sharding.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    batches = samples.batch(batch).cache().prefetch(2).with_options(sharding)
    with strategy.scope():
        model = build(tf_keras, given.model)
    model.fit(batches, epochs=10**6, verbose=0, callbacks=[Pause(gate)])


if __name__ == "__main__":
    main()
