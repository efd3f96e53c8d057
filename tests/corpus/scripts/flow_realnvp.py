# backends: tensorflow
# agrees: rounding
import os

os.environ["KERAS_BACKEND"] = "tensorflow"
import keras
import numpy as np
import tensorflow as tf
from keras import layers
from sklearn.datasets import make_moons

# Density estimation with Real NVP coupling layers.
keras.utils.set_random_seed(46)
data = make_moons(600, noise=0.05, random_state=1)[0].astype("float32")
norm = layers.Normalization()
norm.adapt(data)
normalized_data = norm(data)


def Coupling(input_shape, output_dim=24):
    input = layers.Input(shape=(input_shape,))
    t = layers.Dense(output_dim, activation="relu")(input)
    t = layers.Dense(input_shape, activation="linear")(t)
    s = layers.Dense(output_dim, activation="relu")(input)
    s = layers.Dense(input_shape, activation="tanh")(s)
    return keras.Model(inputs=input, outputs=[s, t])


class RealNVP(keras.Model):
    def __init__(self, num_coupling_layers):
        super().__init__()
        self.num_coupling_layers = num_coupling_layers
        self.masks = np.array([[0, 1], [1, 0]] * (num_coupling_layers // 2), dtype="float32")
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.layers_list = [Coupling(2) for _ in range(num_coupling_layers)]

    @property
    def metrics(self):
        return [self.loss_tracker]

    def call(self, x, training=True):
        log_det_inv = 0
        direction = -1 if training else 1
        for i in range(self.num_coupling_layers)[::direction]:
            x_masked = x * self.masks[i]
            reversed_mask = 1 - self.masks[i]
            s, t = self.layers_list[i](x_masked)
            s, t = s * reversed_mask, t * reversed_mask
            gate = (direction - 1) / 2
            x = reversed_mask * (x * tf.exp(direction * s) + direction * t * tf.exp(gate * s)) + x_masked
            log_det_inv += gate * tf.reduce_sum(s, axis=1)
        return x, log_det_inv

    def log_loss(self, x):
        y, logdet = self(x)
        log_likelihood = -0.5 * tf.reduce_sum(y**2, axis=1) - np.log(2 * np.pi) + logdet
        return -tf.reduce_mean(log_likelihood)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.log_loss(data)
        g = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(g, self.trainable_variables))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    def test_step(self, data):
        self.loss_tracker.update_state(self.log_loss(data))
        return {"loss": self.loss_tracker.result()}


model = RealNVP(num_coupling_layers=4)
model.compile(optimizer=keras.optimizers.Adam(learning_rate=0.003))
history = model.fit(normalized_data, batch_size=64, epochs=5, verbose=2, validation_split=0.2, shuffle=False)
z, _ = model(normalized_data)
x, _ = model.predict(np.random.default_rng(0).normal(size=(100, 2)).astype("float32"), verbose=0)
print("latent", z.shape, "generated", x.shape)
