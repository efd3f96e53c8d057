# backends: tensorflow jax
# agrees: trend
"""Gated residual and variable selection networks as subclassed layers and a subclassed model."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(15)
rng = np.random.default_rng(15)


class GatedLinearUnit(layers.Layer):
    def __init__(self, units):
        super().__init__()
        self.linear = layers.Dense(units)
        self.sigmoid = layers.Dense(units, activation="sigmoid")

    def call(self, inputs):
        return self.linear(inputs) * self.sigmoid(inputs)


class GatedResidualNetwork(layers.Layer):
    def __init__(self, units, dropout_rate):
        super().__init__()
        self.units = units
        self.elu_dense = layers.Dense(units, activation="elu")
        self.linear_dense = layers.Dense(units)
        self.dropout = layers.Dropout(dropout_rate)
        self.gated_linear_unit = GatedLinearUnit(units)
        self.layer_norm = layers.LayerNormalization()
        self.project = layers.Dense(units)

    def call(self, inputs):
        x = self.dropout(self.linear_dense(self.elu_dense(inputs)))
        if inputs.shape[-1] != self.units:
            inputs = self.project(inputs)
        return self.layer_norm(inputs + self.gated_linear_unit(x))


class VariableSelection(layers.Layer):
    def __init__(self, num_features, units, dropout_rate):
        super().__init__()
        self.grns = [GatedResidualNetwork(units, dropout_rate) for _ in range(num_features)]
        self.grn_concat = GatedResidualNetwork(units, dropout_rate)
        self.softmax = layers.Dense(units=num_features, activation="softmax")

    def call(self, inputs):
        v = self.grn_concat(keras.ops.concatenate(inputs, axis=-1))
        v = keras.ops.expand_dims(self.softmax(v), axis=-1)
        x = keras.ops.stack([grn(feature) for grn, feature in zip(self.grns, inputs)], axis=1)
        return keras.ops.sum(v * x, axis=1)


class Income(keras.Model):
    def __init__(self, num_features, units=12):
        super().__init__()
        self.encoders = [layers.Dense(units) for _ in range(num_features)]
        self.selection = VariableSelection(num_features, units, 0.1)
        self.head = layers.Dense(1, activation="sigmoid")

    def call(self, inputs):
        columns = keras.ops.split(inputs, inputs.shape[-1], axis=-1)
        return self.head(self.selection([encode(column) for encode, column in zip(self.encoders, columns)]))


x = rng.normal(size=(512, 4)).astype("float32")
y = (x[:, 0] * x[:, 1] + x[:, 2] > 0).astype("float32")[:, None]
model = Income(4)
model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
early_stopping = keras.callbacks.EarlyStopping(monitor="val_loss", patience=4, restore_best_weights=True)
model.fit(x, y, epochs=6, batch_size=64, validation_split=0.2, callbacks=[early_stopping], verbose=0)
print("accuracy", model.evaluate(x, y, verbose=0)[1])
model.summary()
