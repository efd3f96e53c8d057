# backends: jax tensorflow torch
# agrees: rounding
import keras
from keras import layers, ops
import numpy as np

# Layers of one's own: weights, a non-trainable total, activity regularisation, and a logistic endpoint with add_loss.
keras.utils.set_random_seed(6)


class Linear(layers.Layer):
    def __init__(self, units=32, **kwargs):
        super().__init__(**kwargs)
        self.units = units

    def build(self, input_shape):
        self.w = self.add_weight(shape=(input_shape[-1], self.units), initializer="random_normal", trainable=True)
        self.b = self.add_weight(shape=(self.units,), initializer="zeros", trainable=True)

    def call(self, inputs):
        return ops.matmul(inputs, self.w) + self.b

    def get_config(self):
        return {**super().get_config(), "units": self.units}


class ActivityRegularizationLayer(layers.Layer):
    def __init__(self, rate=1e-2):
        super().__init__()
        self.rate = rate

    def call(self, inputs):
        self.add_loss(self.rate * ops.mean(ops.square(inputs)))
        return inputs


class LogisticEndpoint(layers.Layer):
    def __init__(self, name=None):
        super().__init__(name=name)
        self.loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)

    def call(self, targets, logits):
        self.add_loss(self.loss_fn(targets, logits))
        return ops.softmax(logits)


inputs, targets = keras.Input(shape=(8,), name="inputs"), keras.Input(shape=(3,), name="targets")
x = Linear(16)(inputs)
x = layers.Activation("relu")(x)
x = ActivityRegularizationLayer()(x)
logits = layers.Dense(3)(x)
predictions = LogisticEndpoint(name="predictions")(targets, logits)
model = keras.Model(inputs=[inputs, targets], outputs=predictions)

rng = np.random.default_rng(6)
data = {"inputs": rng.random((192, 8)).astype("float32"), "targets": (rng.random((192, 3)) > 0.5).astype("float32")}
model.compile(optimizer=keras.optimizers.RMSprop(1e-2, clipnorm=1.0))
history = model.fit(data, batch_size=32, epochs=4, shuffle=False, verbose=0)
print("loss", history.history["loss"])
print("trainable weights:", len(model.trainable_weights))
