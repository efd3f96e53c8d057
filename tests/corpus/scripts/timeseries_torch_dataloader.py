# backends: torch jax
# agrees: rounding
"""A torch Dataset and DataLoader feed a Keras model."""

import torch
import keras
import numpy as np

keras.utils.set_random_seed(7)


class Windows(torch.utils.data.Dataset):
    def __init__(self, values, width):
        self.values, self.width = values, width

    def __len__(self):
        return len(self.values) - self.width

    def __getitem__(self, index):
        window = self.values[index : index + self.width]
        return torch.from_numpy(window[:, None]), torch.tensor([self.values[index + self.width]])


values = (np.sin(np.arange(700) / 9) + np.random.default_rng(7).normal(0, 0.05, 700)).astype("float32")
train_loader = torch.utils.data.DataLoader(Windows(values[:560], 16), batch_size=32, shuffle=False, drop_last=True)
valid_loader = torch.utils.data.DataLoader(Windows(values[560:], 16), batch_size=32)

model = keras.Sequential(
    [
        keras.layers.Input((16, 1)),
        keras.layers.Conv1D(8, 5, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(1),
    ]
)
model.compile(optimizer="adam", loss="mse", metrics=["mae"])
model.fit(train_loader, validation_data=valid_loader, epochs=4, verbose=2)
print("evaluate", model.evaluate(valid_loader, verbose=0))
print("predictions", model.predict(valid_loader, verbose=0).shape)
model.save_weights("windows.weights.h5")
