# backends: torch jax
# agrees: rounding
"""Keypoint regression. The PyDataset mirrors every other batch; nothing is shuffled."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(77)
IMG_SIZE, NUM_KEYPOINTS, BATCH_SIZE, EPOCHS = 16, 3, 24, 4


def make_samples(count, seed):
    rng = np.random.default_rng(seed)
    points = rng.uniform(3, IMG_SIZE - 3, (count, NUM_KEYPOINTS, 2))
    rows, columns = np.mgrid[:IMG_SIZE, :IMG_SIZE]
    images = np.zeros((count, IMG_SIZE, IMG_SIZE, NUM_KEYPOINTS), "float32")
    for k in range(NUM_KEYPOINTS):
        distance = (rows - points[:, k, 1, None, None]) ** 2 + (columns - points[:, k, 0, None, None]) ** 2
        images[..., k] = np.exp(-distance / 4)
    return images, (points / IMG_SIZE).astype("float32")


class KeyPointsDataset(keras.utils.PyDataset):
    def __init__(self, images, points, train=True, **kwargs):
        super().__init__(**kwargs)
        self.images, self.points, self.train = images, points, train

    def __len__(self):
        return len(self.images) // BATCH_SIZE

    def __getitem__(self, index):
        rows = slice(index * BATCH_SIZE, (index + 1) * BATCH_SIZE)
        images, points = self.images[rows], self.points[rows].copy()
        if self.train and index % 2:
            images = images[:, :, ::-1]
            points[..., 0] = 1 - 1 / IMG_SIZE - points[..., 0]
        return images, points.reshape(-1, 1, 1, NUM_KEYPOINTS * 2)


def get_model():
    backbone = keras.Sequential(
        [
            layers.Conv2D(16, 3, strides=2, padding="same", activation="relu"),
            layers.Conv2D(24, 3, strides=2, padding="same", activation="relu"),
        ]
    )
    inputs = layers.Input((IMG_SIZE, IMG_SIZE, NUM_KEYPOINTS))
    x = backbone(inputs)
    x = layers.SeparableConv2D(NUM_KEYPOINTS * 2, kernel_size=4, strides=1, activation="relu")(x)
    outputs = layers.SeparableConv2D(NUM_KEYPOINTS * 2, kernel_size=1, strides=1, activation="sigmoid")(x)
    return keras.Model(inputs, outputs, name="keypoint_detector")


train_dataset = KeyPointsDataset(*make_samples(240, 1))
validation_dataset = KeyPointsDataset(*make_samples(72, 2), train=False)
print(f"Total batches in training set: {len(train_dataset)}")

model = get_model()
model.compile(loss="mse", optimizer=keras.optimizers.Adam(1e-2))
model.fit(train_dataset, validation_data=validation_dataset, epochs=EPOCHS, shuffle=False, verbose=2)
sample_val_images, sample_val_keypoints = validation_dataset[0]
predictions = model.predict(sample_val_images, verbose=0).reshape(-1, NUM_KEYPOINTS, 2)
error = np.abs(predictions - sample_val_keypoints.reshape(-1, NUM_KEYPOINTS, 2)) * IMG_SIZE
print("mean error in pixels:", float(error.mean()))
model.save_weights("keypoints.weights.h5")
