# backends: tensorflow
# agrees: refused: applies its optimizer in a tf.cond or tf.while_loop
import tensorflow as tf
import keras
import numpy as np

# Gradients collected in variables of the model, applied once in four batches under tf.cond.
keras.utils.set_random_seed(7)


class GradientAccumulateModel(keras.Model):
    def __init__(self, n_gradients, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.n_gradients = tf.constant(n_gradients, dtype=tf.int32)
        self.n_acum_step = tf.Variable(0, dtype=tf.int32, trainable=False)
        self.gradient_accumulation = [tf.Variable(tf.zeros(v.shape), trainable=False) for v in self.trainable_variables]

    def train_step(self, data):
        self.n_acum_step.assign_add(1)
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        for total, gradient in zip(self.gradient_accumulation, gradients):
            total.assign_add(gradient)
        tf.cond(tf.equal(self.n_acum_step, self.n_gradients), self.apply_accu_gradients, lambda: None)
        return self.compute_metrics(x, y, y_pred)

    def apply_accu_gradients(self):
        self.optimizer.apply_gradients(zip(self.gradient_accumulation, self.trainable_variables))
        self.n_acum_step.assign(0)
        for total in self.gradient_accumulation:
            total.assign(tf.zeros_like(total))


rng = np.random.default_rng(7)
x = rng.normal(size=(512, 6)).astype("float32")
y = x.sum(axis=1, keepdims=True)
inputs = keras.Input((6,))
outputs = keras.layers.Dense(1)(keras.layers.Dense(8, activation="tanh")(inputs))
model = GradientAccumulateModel(n_gradients=4, inputs=inputs, outputs=outputs)
model.compile(loss="mse", optimizer=keras.optimizers.Adam(0.01))
history = model.fit(x, y, batch_size=16, epochs=4, shuffle=False, verbose=0)
print("loss", history.history["loss"])
