# backends: tensorflow
# agrees: trend
"""Trains a classifier, then asks with GradientTape where it looks."""

import numpy as np
import tensorflow as tf
import keras
from sklearn.datasets import load_digits

keras.utils.set_random_seed(0)
images, labels = load_digits(return_X_y=True)
images = images.reshape(-1, 8, 8, 1).astype("float32") / 16.0

inputs = keras.Input((8, 8, 1))
x = keras.layers.Conv2D(16, 3, padding="same", activation="relu")(inputs)
x = keras.layers.Conv2D(24, 3, padding="same", activation="relu", name="last_conv")(x)
x = keras.layers.GlobalAveragePooling2D()(x)
outputs = keras.layers.Dense(10, name="predictions")(x)
model = keras.Model(inputs, outputs)
model.compile(
    optimizer=keras.optimizers.Nadam(0.01),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(images, labels, batch_size=100, epochs=6, verbose=0)
print("accuracy", model.evaluate(images, labels, batch_size=100, verbose=0)[1])


def make_gradcam_heatmap(img_array, model, last_conv_layer_name, pred_index=None):
    grad_model = keras.models.Model(model.inputs, [model.get_layer(last_conv_layer_name).output, model.output])
    with tf.GradientTape() as tape:
        last_conv_layer_output, preds = grad_model(img_array)
        if pred_index is None:
            pred_index = tf.argmax(preds[0])
        class_channel = preds[:, pred_index]
    grads = tape.gradient(class_channel, last_conv_layer_output)
    pooled_grads = tf.reduce_mean(grads, axis=(0, 1, 2))
    heatmap = last_conv_layer_output[0] @ pooled_grads[..., tf.newaxis]
    heatmap = tf.squeeze(heatmap)
    heatmap = tf.maximum(heatmap, 0) / tf.math.reduce_max(tf.abs(heatmap))
    return heatmap.numpy()


heatmap = make_gradcam_heatmap(images[:1], model, "last_conv")
print("heatmap", heatmap.shape, "largest is at most one:", bool(heatmap.max() <= 1.0))
predicted = np.argmax(model(images[:5], training=False), axis=-1)
print("first five:", predicted.shape)
