# backends: tensorflow
# agrees: trend
# updates: 2 a step
"""SimCLR with a linear probe: two optimizers in a step, two sources of data zipped, a fine-tuned model after it."""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"
import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from sklearn.datasets import load_digits

keras.utils.set_random_seed(37)
width, temperature = 32, 0.2
images, labels = load_digits(return_X_y=True)
images = images.reshape(-1, 8, 8, 1).astype("float32") / 16

unlabeled = tf.data.Dataset.from_tensor_slices(images[:1280]).shuffle(1280).batch(96, drop_remainder=True)
labeled = tf.data.Dataset.from_tensor_slices((images[:416], labels[:416])).shuffle(416).batch(32)
train_dataset = tf.data.Dataset.zip((unlabeled, labeled)).prefetch(buffer_size=tf.data.AUTOTUNE)
test_dataset = tf.data.Dataset.from_tensor_slices((images[1280:], labels[1280:])).batch(96)


def get_augmenter(strength):
    return keras.Sequential(
        [layers.Input((8, 8, 1)), layers.RandomTranslation(strength, strength), layers.RandomZoom((-strength, 0.0))]
    )


def get_encoder():
    return keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(width, 3, strides=2, activation="relu", padding="same"),
            layers.Conv2D(width, 3, activation="relu", padding="same"),
            layers.Flatten(),
            layers.Dense(width, activation="relu"),
        ],
        name="encoder",
    )


class ContrastiveModel(keras.Model):
    def __init__(self):
        super().__init__()
        self.temperature = temperature
        self.contrastive_augmenter = get_augmenter(0.2)
        self.classification_augmenter = get_augmenter(0.05)
        self.encoder = get_encoder()
        self.projection_head = keras.Sequential(
            [layers.Input((width,)), layers.Dense(width, "relu"), layers.Dense(width)]
        )
        self.linear_probe = keras.Sequential([layers.Input((width,)), layers.Dense(10)], name="linear_probe")

    def compile(self, contrastive_optimizer, probe_optimizer, **kwargs):
        super().compile(**kwargs)
        self.contrastive_optimizer = contrastive_optimizer
        self.probe_optimizer = probe_optimizer
        self.probe_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.contrastive_loss_tracker = keras.metrics.Mean(name="c_loss")
        self.probe_loss_tracker = keras.metrics.Mean(name="p_loss")
        self.probe_accuracy = keras.metrics.SparseCategoricalAccuracy(name="p_acc")

    @property
    def metrics(self):
        return [self.contrastive_loss_tracker, self.probe_loss_tracker, self.probe_accuracy]

    def contrastive_loss(self, projections_1, projections_2):
        projections_1, projections_2 = ops.normalize(projections_1, axis=1), ops.normalize(projections_2, axis=1)
        similarities = ops.matmul(projections_1, ops.transpose(projections_2)) / self.temperature
        contrastive_labels = ops.arange(ops.shape(projections_1)[0])
        loss_1_2 = keras.losses.sparse_categorical_crossentropy(contrastive_labels, similarities, from_logits=True)
        loss_2_1 = keras.losses.sparse_categorical_crossentropy(
            contrastive_labels, ops.transpose(similarities), from_logits=True
        )
        return (loss_1_2 + loss_2_1) / 2

    def train_step(self, data):
        unlabeled_images, (labeled_images, labels) = data
        views = [self.contrastive_augmenter(unlabeled_images, training=True) for _ in range(2)]
        with tf.GradientTape() as tape:
            projections = [self.projection_head(self.encoder(view, training=True), training=True) for view in views]
            contrastive_loss = ops.mean(self.contrastive_loss(*projections))
        weights = self.encoder.trainable_weights + self.projection_head.trainable_weights
        self.contrastive_optimizer.apply_gradients(zip(tape.gradient(contrastive_loss, weights), weights))
        self.contrastive_loss_tracker.update_state(contrastive_loss)
        preprocessed_images = self.classification_augmenter(labeled_images, training=True)
        with tf.GradientTape() as tape:
            class_logits = self.linear_probe(self.encoder(preprocessed_images, training=False), training=True)
            probe_loss = self.probe_loss(labels, class_logits)
        weights = self.linear_probe.trainable_weights
        self.probe_optimizer.apply_gradients(zip(tape.gradient(probe_loss, weights), weights))
        self.probe_loss_tracker.update_state(probe_loss)
        self.probe_accuracy.update_state(labels, class_logits)
        return {m.name: m.result() for m in self.metrics}

    def test_step(self, data):
        labeled_images, labels = data
        class_logits = self.linear_probe(self.encoder(labeled_images, training=False), training=False)
        self.probe_loss_tracker.update_state(self.probe_loss(labels, class_logits))
        self.probe_accuracy.update_state(labels, class_logits)
        return {m.name: m.result() for m in self.metrics[1:]}


pretraining_model = ContrastiveModel()
pretraining_model.compile(contrastive_optimizer=keras.optimizers.Adam(), probe_optimizer=keras.optimizers.Adam(0.02))
history = pretraining_model.fit(train_dataset, epochs=4, validation_data=test_dataset, verbose=0)
print(f"Maximal validation accuracy: {max(history.history['val_p_acc']) * 100:.2f}%")
