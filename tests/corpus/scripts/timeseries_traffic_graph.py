# backends: tensorflow
# agrees: rounding
"""Traffic on a road network: graph convolution over stations, then an LSTM over time."""

import typing

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(26)
rng = np.random.default_rng(26)
stations, steps = 8, 400
distances = np.abs(np.arange(stations)[:, None] - np.arange(stations)[None]).astype("float32")
adjacency = (np.exp(-(distances**2) / 4) > 0.3).astype("float32")
speeds = (
    60
    + 10 * np.sin(np.arange(steps)[:, None] / 12 + np.arange(stations)[None] / 3)
    + rng.normal(0, 1, (steps, stations))
)


def preprocess(data_array, train_size):
    mean, std = data_array[:train_size].mean(axis=0), data_array[:train_size].std(axis=0)
    return ((data_array[:train_size] - mean) / std).astype("float32"), ((data_array[train_size:] - mean) / std).astype(
        "float32"
    )


train_array, val_array = preprocess(speeds, 320)


def create_tf_dataset(data_array, input_sequence_length=12, forecast_horizon=3, batch_size=32, shuffle=True):
    inputs = keras.utils.timeseries_dataset_from_array(
        np.expand_dims(data_array[:-forecast_horizon], axis=-1),
        None,
        input_sequence_length,
        shuffle=False,
        batch_size=batch_size,
    )
    target_offset = input_sequence_length + forecast_horizon - 1
    targets = keras.utils.timeseries_dataset_from_array(
        data_array[target_offset:], None, 1, shuffle=False, batch_size=batch_size
    )
    dataset = tf.data.Dataset.zip((inputs, targets))
    if shuffle:
        dataset = dataset.shuffle(16, seed=7)
    return dataset.prefetch(16).cache()


class GraphInfo:
    def __init__(self, edges: typing.Tuple[list, list], num_nodes: int):
        self.edges, self.num_nodes = edges, num_nodes


sources, targets = np.where(adjacency == 1)
graph = GraphInfo(edges=(sources.tolist(), targets.tolist()), num_nodes=stations)
print(f"number of nodes: {graph.num_nodes}, number of edges: {len(graph.edges[0])}")


class GraphConv(layers.Layer):
    def __init__(self, in_feat, out_feat, graph_info, **kwargs):
        super().__init__(**kwargs)
        self.graph_info = graph_info
        self.weight = self.add_weight(initializer="glorot_uniform", shape=(in_feat, out_feat), trainable=True)

    def call(self, features):
        features = ops.transpose(features, [2, 0, 1, 3])
        neighbours = ops.take(features, np.array(self.graph_info.edges[1]), axis=0)
        aggregated = tf.math.unsorted_segment_mean(neighbours, self.graph_info.edges[0], self.graph_info.num_nodes)
        return ops.transpose(
            ops.relu(ops.concatenate([features @ self.weight, aggregated @ self.weight], axis=-1)), [1, 2, 0, 3]
        )


inputs = layers.Input((12, stations, 1))
x = GraphConv(1, 4, graph)(inputs)
x = layers.Permute((2, 1, 3))(x)
x = layers.TimeDistributed(layers.LSTM(8))(x)
x = layers.Dense(1)(x)
outputs = layers.Permute((2, 1))(x)
model = keras.models.Model(inputs, outputs)
model.compile(optimizer=keras.optimizers.RMSprop(learning_rate=0.003), loss=keras.losses.MeanSquaredError())
model.fit(
    create_tf_dataset(train_array),
    validation_data=create_tf_dataset(val_array, shuffle=False),
    epochs=3,
    callbacks=[keras.callbacks.EarlyStopping(patience=10)],
    verbose=2,
)
