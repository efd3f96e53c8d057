# backends: jax tensorflow
# agrees: trend
"""Node classification: messages along the edges, and `fit` on the numbers of nodes."""

import keras
import numpy as np
import pandas as pd
from keras import layers, ops

keras.utils.set_random_seed(29)
rng = np.random.default_rng(29)
NODES, CLASSES = 200, 3
subjects = rng.integers(0, CLASSES, NODES)
papers = pd.DataFrame(
    rng.integers(0, 2, (NODES, 12)) | (rng.random((NODES, 12)) < 0.3 * (np.arange(12) % CLASSES == subjects[:, None]))
)
papers["subject"] = subjects
pairs = [(a, b) for a, b in rng.integers(0, NODES, (3000, 2)) if subjects[a] == subjects[b] or rng.random() < 0.1]
citations = pd.DataFrame(pairs, columns=["source", "target"]).drop_duplicates()
print("Citations shape:", citations.shape[1], "columns")

train_data, test_data = papers.sample(frac=0.6, random_state=1), None
test_data = papers.drop(train_data.index)
edges = citations[["source", "target"]].to_numpy().T
edge_weights = np.ones(edges.shape[1], "float32")
node_features = papers.drop(columns="subject").to_numpy().astype("float32")


def create_ffn(hidden_units, dropout_rate):
    return keras.Sequential(
        [
            layer
            for units in hidden_units
            for layer in (layers.Dropout(dropout_rate), layers.Dense(units, activation="gelu"))
        ]
    )


class GraphConvLayer(layers.Layer):
    def __init__(self, hidden_units, dropout_rate=0.2, **kwargs):
        super().__init__(**kwargs)
        self.ffn_prepare = create_ffn(hidden_units, dropout_rate)
        self.update_fn = create_ffn(hidden_units, dropout_rate)

    def call(self, inputs):
        node_representations, edges, edge_weights = inputs
        node_indices, neighbour_indices = edges[0], edges[1]
        neighbours = self.ffn_prepare(ops.take(node_representations, neighbour_indices, axis=0))
        messages = neighbours * ops.expand_dims(edge_weights, -1)
        total = ops.segment_sum(messages, node_indices, num_segments=NODES)
        counts = ops.segment_sum(edge_weights, node_indices, num_segments=NODES)
        aggregated = total / ops.maximum(ops.expand_dims(counts, -1), 1.0)
        return self.update_fn(ops.concatenate([node_representations, aggregated], axis=1))


class GNNNodeClassifier(keras.Model):
    def __init__(self, graph_info, num_classes, hidden_units, **kwargs):
        super().__init__(**kwargs)
        node_features, edges, edge_weights = graph_info
        self.node_features = ops.convert_to_tensor(node_features)
        self.edges = ops.convert_to_tensor(edges)
        self.edge_weights = ops.convert_to_tensor(edge_weights / edge_weights.sum() * len(edge_weights))
        self.preprocess = create_ffn(hidden_units, 0.1)
        self.conv1 = GraphConvLayer(hidden_units, 0.1)
        self.compute_logits = layers.Dense(num_classes)

    def call(self, input_node_indices):
        x = self.preprocess(self.node_features)
        x = self.conv1((x, self.edges, self.edge_weights)) + x
        return self.compute_logits(ops.take(x, input_node_indices, axis=0))


gnn_model = GNNNodeClassifier((node_features, edges, edge_weights), CLASSES, [24])
print("GNN output shape:", gnn_model(ops.convert_to_tensor([1, 10, 100])).shape)
gnn_model.compile(
    optimizer=keras.optimizers.Adam(0.01),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[keras.metrics.SparseCategoricalAccuracy(name="acc")],
)
early_stopping = keras.callbacks.EarlyStopping(monitor="val_acc", patience=50, restore_best_weights=True)
gnn_model.fit(
    x=train_data.index.to_numpy(),
    y=train_data.subject.to_numpy(),
    epochs=12,
    batch_size=32,
    validation_split=0.15,
    callbacks=[early_stopping],
    verbose=0,
)
_, test_accuracy = gnn_model.evaluate(x=test_data.index.to_numpy(), y=test_data.subject.to_numpy(), verbose=0)
print(f"Test accuracy: {round(test_accuracy * 100, 2)}%")
