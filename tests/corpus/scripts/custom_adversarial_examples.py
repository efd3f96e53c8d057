# backends: tensorflow
# agrees: rounding
import keras
import numpy as np
import tensorflow as tf

# Adversarial training: a step along the sign of the gradient of the inputs, in train_step.
keras.utils.set_random_seed(5)


class Robust(keras.Model):
    def __init__(self, *args, epsilon=0.1, **kwargs):
        super().__init__(*args, **kwargs)
        self.epsilon = epsilon

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = self.compute_loss(x, y, self(x, training=True))
        perturbed = x + self.epsilon * tf.sign(tape.gradient(loss, x))
        with tf.GradientTape() as tape:
            y_pred = self(perturbed, training=True)
            loss = 0.5 * self.compute_loss(x, y, self(x, training=True)) + 0.5 * self.compute_loss(x, y, y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return self.compute_metrics(x, y, y_pred)


rng = np.random.default_rng(5)
x = rng.normal(size=(480, 10)).astype("float32")
y = (x[:, 0] > x[:, 1]).astype("int32")
inputs = keras.Input((10,))
hidden = keras.layers.Dense(24, activation="relu")(inputs)
model = Robust(inputs, keras.layers.Dense(2)(hidden))
model.compile(
    keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
)
history = model.fit(x, y, batch_size=48, epochs=4, shuffle=False, verbose=0)
print({name: values for name, values in sorted(history.history.items())})
