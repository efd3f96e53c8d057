# backends: tensorflow jax
# agrees: rounding
"""Filters made visible by gradient ascent on a picture: no optimizer, nothing is trained."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(61)
model = keras.Sequential(
    [layers.Input((12, 12, 3)), layers.Conv2D(6, 3, activation="relu"), layers.Conv2D(4, 3, name="last")]
)
model.summary()
feature_extractor = keras.Model(inputs=model.inputs, outputs=model.get_layer("last").output)

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    def gradient(image, filter_index):
        image = tf.convert_to_tensor(image)
        with tf.GradientTape() as tape:
            tape.watch(image)
            loss = tf.reduce_mean(feature_extractor(image)[:, 2:-2, 2:-2, filter_index])
        return loss, tape.gradient(loss, image)

elif keras.backend.backend() == "jax":
    import jax

    def gradient(image, filter_index):
        def loss(image):
            return feature_extractor(image)[:, 2:-2, 2:-2, filter_index].mean()

        return jax.value_and_grad(loss)(image)


all_images = []
for filter_index in range(4):
    image = (np.random.default_rng(filter_index).random((1, 12, 12, 3)).astype("float32") - 0.5) * 0.25
    for _ in range(10):
        loss, grads = gradient(image, filter_index)
        grads = np.asarray(grads)
        image = image + 5.0 * grads / np.linalg.norm(grads)
    print(f"filter {filter_index}: activation {float(loss):.4f}")
    all_images.append(image[0])
np.save("filters.npy", np.stack(all_images))
