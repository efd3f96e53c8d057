# backends: torch
# agrees: refused: outside of fit() would train each worker's copy of the model by itself
import os

os.environ["KERAS_BACKEND"] = "torch"

import torch
import keras
import numpy as np

# A loop from scratch with one of torch's own optimizers on a Keras model.
keras.utils.set_random_seed(4)
rng = np.random.default_rng(4)
x = rng.normal(size=(512, 16)).astype("float32")
y = (x[:, :4].sum(axis=1) > 0).astype("int64")
train_dataset = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
train_dataloader = torch.utils.data.DataLoader(train_dataset, batch_size=32, shuffle=False)

model = keras.Sequential([keras.layers.Input((16,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(2)])
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loss_fn = torch.nn.CrossEntropyLoss()

for epoch in range(3):
    for step, (inputs, targets) in enumerate(train_dataloader):
        logits = model(inputs)
        loss = loss_fn(logits, targets)
        model.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 8 == 0:
            print(f"Training loss (for 1 batch) at step {step}: {loss.cpu().detach().numpy():.4f}")
