# backends: tensorflow
# agrees: trend
import keras
import numpy as np

# A plain loop of fit calls of one epoch each, with the state reset by hand and an initial_epoch that grows.
keras.utils.set_random_seed(13)
x = np.sin(np.arange(640) / 8).astype("float32")
inputs, targets = x[:-1].reshape(-1, 1)[:608].reshape(32, 19, 1), x[1:609].reshape(32, 19, 1)

model = keras.Sequential(
    [keras.layers.Input((19, 1)), keras.layers.SimpleRNN(16, return_sequences=True), keras.layers.Dense(1)]
)
model.compile(keras.optimizers.Adam(0.01), "mse")
losses = []
for epoch in range(6):
    history = model.fit(inputs, targets, batch_size=8, initial_epoch=epoch, epochs=epoch + 1, verbose=0)
    losses += history.history["loss"]
    if losses[-1] < 0.001:
        break
print("epochs", len(losses), "first", losses[0], "last", losses[-1])
