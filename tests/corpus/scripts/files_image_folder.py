# backends: tensorflow
# agrees: trend
"""Pictures in folders: written, read back with image_dataset_from_directory, cached, trained on."""

import os
import pathlib
import zipfile

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(42)
rng = np.random.default_rng(42)
data_dir = pathlib.Path("flowers")
if not data_dir.exists():
    for kind, name in enumerate(["daisies", "roses"]):
        os.makedirs(data_dir / name)
        for number in range(60):
            picture = rng.integers(0, 120, (12, 12, 3))
            picture[..., kind] += 100
            tf.io.write_file(str(data_dir / name / f"{number}.png"), tf.io.encode_png(picture.astype("uint8")))
with zipfile.ZipFile("flowers.zip", "w") as archive:
    for path in sorted(data_dir.rglob("*.png")):
        archive.write(path)
with zipfile.ZipFile("flowers.zip") as archive:
    archive.extractall("extracted")

train_ds, val_ds = keras.utils.image_dataset_from_directory(
    "extracted/flowers", validation_split=0.2, subset="both", seed=123, image_size=(12, 12), batch_size=16
)
class_names = train_ds.class_names
print(class_names)
train_ds = train_ds.cache().shuffle(100, seed=1).prefetch(buffer_size=tf.data.AUTOTUNE)
val_ds = val_ds.cache().prefetch(buffer_size=tf.data.AUTOTUNE)
model = keras.Sequential(
    [
        layers.Rescaling(1.0 / 255),
        layers.Conv2D(8, 3, activation="relu"),
        layers.GlobalAveragePooling2D(),
        layers.Dense(len(class_names)),
    ]
)
model.compile(
    optimizer=keras.optimizers.Adam(0.02),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(train_ds, validation_data=val_ds, epochs=4, verbose=2)
