# backends: tensorflow torch
# agrees: trend
"""The generator class of many older scripts: keras.utils.Sequence that shuffles itself after each epoch."""

import keras
import numpy as np


class DataGenerator(keras.utils.Sequence):
    def __init__(self, list_IDs, labels, batch_size=32, dim=(10,), n_classes=3, shuffle=True):
        super().__init__()
        self.dim, self.batch_size, self.labels, self.list_IDs = dim, batch_size, labels, list_IDs
        self.n_classes, self.shuffle = n_classes, shuffle
        self.on_epoch_end()

    def __len__(self):
        return int(np.floor(len(self.list_IDs) / self.batch_size))

    def __getitem__(self, index):
        indexes = self.indexes[index * self.batch_size : (index + 1) * self.batch_size]
        return self.__data_generation([self.list_IDs[k] for k in indexes])

    def on_epoch_end(self):
        self.indexes = np.arange(len(self.list_IDs))
        if self.shuffle:
            np.random.shuffle(self.indexes)

    def __data_generation(self, list_IDs_temp):
        X = np.empty((self.batch_size, *self.dim), dtype="float32")
        y = np.empty(self.batch_size, dtype=int)
        for i, ID in enumerate(list_IDs_temp):
            X[i] = np.random.default_rng(ID).normal(self.labels[ID], 1.0, self.dim)
            y[i] = self.labels[ID]
        return X, keras.utils.to_categorical(y, num_classes=self.n_classes)


keras.utils.set_random_seed(67)
partition = {"train": list(range(480)), "validation": list(range(480, 600))}
labels = {ID: ID % 3 for ID in range(600)}
params = {"dim": (10,), "batch_size": 32, "n_classes": 3}
training_generator = DataGenerator(partition["train"], labels, shuffle=True, **params)
validation_generator = DataGenerator(partition["validation"], labels, shuffle=False, **params)

model = keras.Sequential([keras.layers.Input((10,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(3, "softmax")])
model.compile("adam", "categorical_crossentropy", metrics=["accuracy"])
model.fit(training_generator, validation_data=validation_generator, epochs=5, verbose=2)
