# backends: jax
# agrees: trend
import os

os.environ["KERAS_BACKEND"] = "jax"
import keras
from keras import layers
import numpy as np

# Sequence to sequence: "12+30" -> "42 ".
keras.utils.set_random_seed(8)
np.random.seed(8)
TRAINING_SIZE, DIGITS = 1500, 2
MAXLEN = DIGITS + 1 + DIGITS


class CharacterTable:
    """One-hot vectors from characters and back."""

    def __init__(self, chars):
        self.chars = sorted(set(chars))
        self.char_indices = {c: i for i, c in enumerate(self.chars)}
        self.indices_char = dict(enumerate(self.chars))

    def encode(self, C, num_rows):
        x = np.zeros((num_rows, len(self.chars)))
        for i, c in enumerate(C):
            x[i, self.char_indices[c]] = 1
        return x

    def decode(self, x, calc_argmax=True):
        if calc_argmax:
            x = x.argmax(axis=-1)
        return "".join(self.indices_char[i] for i in x)


ctable = CharacterTable("0123456789+ ")
questions, expected, seen = [], [], set()
print("Generating data...")
while len(questions) < TRAINING_SIZE:
    a, b = np.random.randint(0, 100, 2)
    key = tuple(sorted((int(a), int(b))))
    if key in seen:
        continue
    seen.add(key)
    questions.append(f"{a}+{b}".ljust(MAXLEN)[::-1])
    expected.append(str(a + b).ljust(DIGITS + 1))
print("Total questions:", len(questions))

x = np.stack([ctable.encode(q, MAXLEN) for q in questions]).astype("float32")
y = np.stack([ctable.encode(a, DIGITS + 1) for a in expected]).astype("float32")
split_at = len(x) - len(x) // 10
(x_train, x_val), (y_train, y_val) = (x[:split_at], x[split_at:]), (y[:split_at], y[split_at:])

model = keras.Sequential()
model.add(layers.Input((MAXLEN, len(ctable.chars))))
model.add(layers.LSTM(48))
model.add(layers.RepeatVector(DIGITS + 1))
model.add(layers.LSTM(48, return_sequences=True))
model.add(layers.Dense(len(ctable.chars), activation="softmax"))
model.compile(loss="categorical_crossentropy", optimizer=keras.optimizers.Adam(5e-3), metrics=["accuracy"])

for epoch in range(1, 4):
    print("Iteration", epoch)
    model.fit(x_train, y_train, batch_size=32, epochs=1, validation_data=(x_val, y_val), verbose=2)
    for _ in range(2):
        ind = np.random.randint(0, len(x_val))
        preds = np.argmax(model.predict(x_val[np.array([ind])], verbose=0), axis=-1)
        guess = ctable.decode(preds[0], calc_argmax=False)
        assert len(guess) == DIGITS + 1
