# backends: torch jax
# agrees: trend
import keras
from keras import layers
import numpy as np

# Word vectors from a file, as a frozen Embedding.
keras.utils.set_random_seed(14)
rng = np.random.default_rng(14)

vocabulary = ["", "[UNK]"] + [f"word{i}" for i in range(80)]
word_index = dict(zip(vocabulary, range(len(vocabulary))))
with open("vectors.txt", "w") as file:
    for i in range(0, 80, 1):
        vector = rng.normal(size=12) + (i % 4)
        file.write(f"word{i} " + " ".join(f"{v:.4f}" for v in vector) + "\n")

embeddings_index = {}
with open("vectors.txt") as f:
    for line in f:
        word, coefs = line.split(maxsplit=1)
        embeddings_index[word] = np.fromstring(coefs, "f", sep=" ") if hasattr(np, "fromstring") else None
print(f"Found {len(embeddings_index)} word vectors.")

num_tokens, embedding_dim = len(vocabulary) + 2, 12
hits = misses = 0
embedding_matrix = np.zeros((num_tokens, embedding_dim))
for word, i in word_index.items():
    embedding_vector = embeddings_index.get(word)
    if embedding_vector is not None:
        embedding_matrix[i] = embedding_vector
        hits += 1
    else:
        misses += 1
print(f"Converted {hits} words ({misses} misses)")

embedding_layer = layers.Embedding(num_tokens, embedding_dim, trainable=False)
embedding_layer.build((1,))
embedding_layer.set_weights([embedding_matrix])

labels = rng.integers(0, 4, 400)
ids = (
    2
    + 4 * rng.integers(0, 20, (400, 15))
    + np.where(rng.random((400, 15)) < 0.5, labels[:, None], rng.integers(0, 4, (400, 15)))
)

int_sequences_input = keras.Input(shape=(None,), dtype="int32")
x = embedding_layer(int_sequences_input)
x = layers.Conv1D(24, 3, activation="relu")(x)
x = layers.GlobalMaxPooling1D()(x)
x = layers.Dense(24, activation="relu")(x)
preds = layers.Dense(4, activation="softmax")(x)
model = keras.Model(int_sequences_input, preds)
model.compile(loss="sparse_categorical_crossentropy", optimizer="rmsprop", metrics=["acc"])
model.fit(ids[:320], labels[:320], batch_size=32, epochs=6, validation_data=(ids[320:], labels[320:]), verbose=2)
print("embedding unchanged:", bool(np.allclose(embedding_layer.get_weights()[0], embedding_matrix, atol=1e-6)))
