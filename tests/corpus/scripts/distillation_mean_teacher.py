# backends: tensorflow
# agrees: trend
"""Self-training with a mean teacher: a callback moves the teacher after every batch."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from sklearn.datasets import make_circles

keras.utils.set_random_seed(62)
x, y = make_circles(800, noise=0.08, factor=0.5, random_state=0)
x, y = x.astype("float32"), y.astype("float32")[:, None]


def network():
    return keras.Sequential(
        [
            layers.Input((2,)),
            layers.GaussianNoise(0.1),
            layers.Dense(24, activation="relu"),
            layers.Dense(24, activation="relu"),
            layers.Dense(1),
        ]
    )


class MeanTeacher(keras.Model):
    def __init__(self):
        super().__init__()
        self.student, self.teacher = network(), network()
        self.teacher.trainable = False
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def call(self, x):
        return self.student(x)

    def train_step(self, data):
        (labeled, unlabeled), y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self.student(labeled, training=True))
            aim = tf.nn.sigmoid(self.teacher(unlabeled, training=True))
            guess = tf.nn.sigmoid(self.student(unlabeled, training=True))
            loss += tf.reduce_mean(tf.square(guess - tf.stop_gradient(aim)))
        weights = self.student.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}


class MoveTeacher(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        for student, teacher in zip(self.model.student.variables, self.model.teacher.variables):
            if "seed" not in student.path:
                teacher.assign(0.9 * teacher + 0.1 * student)


model = MeanTeacher()
model.compile(optimizer=keras.optimizers.Adam(0.01), loss=keras.losses.BinaryCrossentropy(from_logits=True))
model.fit([x[:400], x[400:]], y[:400], epochs=12, batch_size=40, callbacks=[MoveTeacher()], verbose=0)
for name in ("student", "teacher"):
    predictions = getattr(model, name).predict(x, verbose=0) > 0
    print(name, "accuracy", float(np.mean(predictions == y)))
