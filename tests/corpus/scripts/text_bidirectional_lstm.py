# backends: tensorflow torch
# agrees: trend
import numpy as np
import keras
from keras import layers

# Variable length sequences, padded in front; Embedding and a Bidirectional LSTM.
keras.utils.set_random_seed(123)
max_features, maxlen = 100, 20

rng = np.random.default_rng(123)
lengths = rng.integers(5, maxlen + 10, 400)
y = rng.integers(0, 2, 400)
x = [
    np.where(rng.random(length) < 0.3, 10 + 40 * label, rng.integers(1, max_features, length)).tolist()
    for length, label in zip(lengths, y)
]
x = keras.utils.pad_sequences(x, maxlen=maxlen)

inputs = keras.Input(shape=(None,), dtype="int32")
h = layers.Embedding(max_features, 16)(inputs)
h = layers.Bidirectional(layers.LSTM(8, return_sequences=True))(h)
h = layers.Bidirectional(layers.LSTM(8))(h)
outputs = layers.Dense(1, activation="sigmoid")(h)
model = keras.Model(inputs, outputs)
model.summary()

model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
model.fit(x[:320], y[:320], batch_size=32, epochs=4, validation_data=(x[320:], y[320:]), verbose=2)
print("accuracy", model.evaluate(x[320:], y[320:], verbose=0, return_dict=True)["accuracy"])
