# backends: tensorflow
# agrees: trend
import tensorflow as tf
import numpy as np
import keras
from keras import layers

# Augmentation twice: in the tf.data pipeline, and as layers of the model.
AUTOTUNE = tf.data.AUTOTUNE
keras.utils.set_random_seed(4)

rng = np.random.default_rng(4)
labels = rng.integers(0, 2, 320)
images = rng.uniform(0, 60, (320, 20, 20, 3))
images[labels == 1, 5:15, 5:15] += 150
images = images.astype("uint8")

train_ds = tf.data.Dataset.from_tensor_slices((images[:256], labels[:256])).batch(32)
val_ds = tf.data.Dataset.from_tensor_slices((images[256:], labels[256:])).batch(32)

augment = keras.Sequential([layers.RandomFlip("horizontal_and_vertical", seed=1), layers.RandomRotation(0.05, seed=2)])


def prepare(ds, shuffle=False, augmented=False):
    ds = ds.map(lambda x, y: (tf.cast(x, tf.float32) / 255.0, y), num_parallel_calls=AUTOTUNE)
    if shuffle:
        ds = ds.unbatch().shuffle(256).batch(32)
    if augmented:
        ds = ds.map(lambda x, y: (augment(x, training=True), y), num_parallel_calls=AUTOTUNE)
    return ds.prefetch(buffer_size=AUTOTUNE)


model = keras.Sequential(
    [
        layers.Input((20, 20, 3)),
        layers.RandomZoom(0.1, seed=3),
        layers.RandomContrast(0.1, seed=4),
        layers.Conv2D(8, 3, padding="same", activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(16, 3, padding="same", activation="relu"),
        layers.GlobalMaxPooling2D(),
        layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(optimizer="adam", loss="binary_crossentropy", metrics=["accuracy"])
model.fit(prepare(train_ds, shuffle=True, augmented=True), validation_data=prepare(val_ds), epochs=6, verbose=2)
loss, accuracy = model.evaluate(prepare(val_ds), verbose=0)
print(f"Test accuracy {accuracy:.3f}")
