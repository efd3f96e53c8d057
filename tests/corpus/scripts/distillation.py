# backends: jax tensorflow torch
# agrees: rounding
"""Knowledge distillation: a Distiller with compute_loss, on every backend."""

import os

import keras
from keras import layers, ops
import numpy as np
from sklearn.datasets import load_digits


class Distiller(keras.Model):
    def __init__(self, student, teacher):
        super().__init__()
        self.teacher = teacher
        self.student = student

    def compile(self, optimizer, metrics, student_loss_fn, distillation_loss_fn, alpha=0.1, temperature=3):
        super().compile(optimizer=optimizer, metrics=metrics)
        self.student_loss_fn = student_loss_fn
        self.distillation_loss_fn = distillation_loss_fn
        self.alpha = alpha
        self.temperature = temperature

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, allow_empty=False):
        teacher_pred = self.teacher(x, training=False)
        student_loss = self.student_loss_fn(y, y_pred)
        distillation_loss = self.distillation_loss_fn(
            ops.softmax(teacher_pred / self.temperature, axis=1), ops.softmax(y_pred / self.temperature, axis=1)
        ) * (self.temperature**2)
        return self.alpha * student_loss + (1 - self.alpha) * distillation_loss

    def call(self, x):
        return self.student(x)


def network(units, name):
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(units, 3, strides=2),
            layers.LeakyReLU(0.2),
            layers.Flatten(),
            layers.Dense(10),
        ],
        name=name,
    )


keras.utils.set_random_seed(0)
teacher, student = network(24, "teacher"), network(8, "student")
student_scratch = keras.models.clone_model(student)

images, labels = load_digits(return_X_y=True)
images = np.reshape(images.astype("float32") / 16, (-1, 8, 8, 1))
x_train, y_train, x_test, y_test = images[:1440], labels[:1440], images[1440:], labels[1440:]

teacher.compile(
    optimizer=keras.optimizers.Adam(0.01),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[keras.metrics.SparseCategoricalAccuracy()],
)
teacher.fit(x_train, y_train, epochs=2, batch_size=96, shuffle=False, verbose=0)
print("teacher", teacher.evaluate(x_test, y_test, verbose=0))

distiller = Distiller(student=student, teacher=teacher)
distiller.compile(
    optimizer=keras.optimizers.Adam(0.01),
    metrics=[keras.metrics.SparseCategoricalAccuracy()],
    student_loss_fn=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    distillation_loss_fn=keras.losses.KLDivergence(),
    alpha=0.1,
    temperature=10,
)
distiller.fit(x_train, y_train, epochs=2, batch_size=96, shuffle=False, verbose=0)
print("student", distiller.evaluate(x_test, y_test, verbose=0))

student_scratch.compile(
    optimizer=keras.optimizers.Adam(0.01),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[keras.metrics.SparseCategoricalAccuracy()],
)
student_scratch.fit(x_train, y_train, epochs=2, batch_size=96, shuffle=False, verbose=0)
print("from scratch", student_scratch.evaluate(x_test, y_test, verbose=0))
