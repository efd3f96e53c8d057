# backends: jax torch
# agrees: trend
"""Character-level text generation: an LSTM, sampled after every epoch at several temperatures."""

import random

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(31)

text = ("the shoal swims where the water is warm and the water is warm where the sun is high. " * 12).lower()
print("Corpus length:", len(text))
chars = sorted(set(text))
print("Total chars:", len(chars))
char_indices = {c: i for i, c in enumerate(chars)}
indices_char = dict(enumerate(chars))

maxlen, step = 16, 3
sentences = [text[i : i + maxlen] for i in range(0, len(text) - maxlen, step)]
next_chars = [text[i + maxlen] for i in range(0, len(text) - maxlen, step)]
print("Number of sequences:", len(sentences))

x = np.zeros((len(sentences), maxlen, len(chars)), dtype="bool")
y = np.zeros((len(sentences), len(chars)), dtype="bool")
for i, sentence in enumerate(sentences):
    for t, char in enumerate(sentence):
        x[i, t, char_indices[char]] = 1
    y[i, char_indices[next_chars[i]]] = 1

model = keras.Sequential(
    [
        keras.Input(shape=(maxlen, len(chars))),
        layers.LSTM(32),
        layers.Dense(len(chars), activation="softmax"),
    ]
)
model.compile(loss="categorical_crossentropy", optimizer=keras.optimizers.RMSprop(learning_rate=0.01))


def sample(preds, temperature=1.0):
    preds = np.asarray(preds).astype("float64")
    preds = np.log(preds) / temperature
    exp_preds = np.exp(preds)
    probas = np.random.multinomial(1, exp_preds / np.sum(exp_preds), 1)
    return np.argmax(probas)


for epoch in range(3):
    history = model.fit(x, y, batch_size=48, epochs=2, verbose=0)
    print("Epoch", epoch, "loss", history.history["loss"][-1])
    start_index = random.randint(0, len(text) - maxlen - 1)
    for diversity in [0.5, 1.0]:
        generated = ""
        sentence = text[start_index : start_index + maxlen]
        for _ in range(10):
            x_pred = np.zeros((1, maxlen, len(chars)))
            for t, char in enumerate(sentence):
                x_pred[0, t, char_indices[char]] = 1.0
            next_char = indices_char[sample(model.predict(x_pred, verbose=0)[0], diversity)]
            sentence = sentence[1:] + next_char
            generated += next_char
        print("Diversity", diversity, "gave", len(generated), "characters")
