# backends: jax torch
# agrees: trend
"""Deep neural decision trees: routing probabilities and leaf distributions as weights of a subclassed model."""

import keras
import numpy as np
from keras import layers, ops
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler

keras.utils.set_random_seed(48)
x, y = load_breast_cancer(return_X_y=True)
x = StandardScaler().fit_transform(x).astype("float32")


class NeuralDecisionTree(keras.Model):
    def __init__(self, depth, num_features, used_features_rate, num_classes):
        super().__init__()
        self.depth, self.num_leaves, self.num_classes = depth, 2**depth, num_classes
        num_used_features = int(num_features * used_features_rate)
        chosen = np.random.choice(np.arange(num_features), num_used_features, replace=False)
        self.used_features_mask = ops.convert_to_tensor(np.eye(num_features, dtype="float32")[chosen])
        self.pi = self.add_weight(initializer="random_normal", shape=(self.num_leaves, num_classes), name="pi")
        self.decision_fn = layers.Dense(units=self.num_leaves, activation="sigmoid", name="decision")

    def call(self, features):
        features = ops.matmul(features, ops.transpose(self.used_features_mask))
        decisions = ops.expand_dims(self.decision_fn(features), axis=2)
        decisions = layers.concatenate([decisions, 1 - decisions], axis=2)
        mu = ops.ones_like(decisions[:, :1, :1])
        begin_idx, end_idx = 1, 2
        for level in range(self.depth):
            mu = ops.tile(ops.reshape(mu, [-1, 2**level, 1]), (1, 1, 2))
            mu = mu * decisions[:, begin_idx:end_idx, :]
            begin_idx, end_idx = end_idx, end_idx + 2 ** (level + 1)
        mu = ops.reshape(mu, [-1, self.num_leaves])
        return ops.matmul(mu, ops.softmax(self.pi))


class NeuralDecisionForest(keras.Model):
    def __init__(self, num_trees, depth, num_features, used_features_rate, num_classes):
        super().__init__()
        self.ensemble = [
            NeuralDecisionTree(depth, num_features, used_features_rate, num_classes) for _ in range(num_trees)
        ]

    def call(self, inputs):
        return sum(tree(inputs) for tree in self.ensemble) / len(self.ensemble)


forest = NeuralDecisionForest(num_trees=4, depth=3, num_features=30, used_features_rate=0.6, num_classes=2)
forest.compile(
    optimizer=keras.optimizers.Adam(learning_rate=0.02),
    loss=keras.losses.SparseCategoricalCrossentropy(),
    metrics=["accuracy"],
)
forest.fit(x[:480], y[:480], epochs=6, batch_size=60, verbose=0)
print("test accuracy", forest.evaluate(x[480:], y[480:], verbose=0)[1])
