# backends: tensorflow
# agrees: trend
"""Named entity recognition: tokens from a text file, a lookup table, padded batches, a loss that masks padding."""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf
from collections import Counter
from keras import layers, ops

keras.utils.set_random_seed(3)
rng = np.random.default_rng(3)

people, places = ["anna", "bert", "carl", "dora"], ["paris", "rome", "oslo", "lima"]
words = "the old man went with a friend to see house of by train and came back".split()


def export_to_file(export_file_path, count):
    with open(export_file_path, "w") as f:
        for _ in range(count):
            tokens, tags = [], []
            for _ in range(rng.integers(4, 10)):
                kind = rng.choice(3, p=[0.6, 0.2, 0.2])
                tokens.append(str(rng.choice([words, people, places][kind])))
                tags.append(int(kind) + 1)
            f.write(f"{len(tokens)}\t" + "\t".join(tokens) + "\t" + "\t".join(map(str, tags)) + "\n")


os.makedirs("data", exist_ok=True)
export_to_file("./data/train.txt", 256)
export_to_file("./data/val.txt", 64)

vocabulary = [token for token, _ in Counter(words + people + places).most_common(100)]
lookup_layer = keras.layers.StringLookup(vocabulary=vocabulary)


def map_record_to_training_data(record):
    record = tf.strings.split(record, sep="\t")
    length = tf.strings.to_number(record[0], out_type=tf.int32)
    tokens, tags = record[1 : length + 1], record[length + 1 :]
    return tf.strings.lower(tokens), tf.strings.to_number(tags, out_type=tf.int64)


def dataset_of(path):
    data = tf.data.TextLineDataset(path).map(map_record_to_training_data)
    return data.map(lambda x, y: (lookup_layer(x), y)).padded_batch(32)


class CustomNonPaddingTokenLoss(keras.losses.Loss):
    def __init__(self, name="custom_ner_loss"):
        super().__init__(name=name)

    def call(self, y_true, y_pred):
        loss = keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=False)
        mask = ops.cast(y_true > 0, dtype="float32")
        return ops.sum(loss * mask) / ops.sum(mask)


class NERModel(keras.Model):
    def __init__(self, num_tags, vocab_size, embed_dim=16, **kwargs):
        super().__init__(**kwargs)
        self.embedding = layers.Embedding(vocab_size, embed_dim)
        self.attention = layers.MultiHeadAttention(2, embed_dim)
        self.normalize = layers.LayerNormalization(epsilon=1e-6)
        self.dropout = layers.Dropout(0.1)
        self.ff_final = layers.Dense(num_tags, activation="softmax")

    def call(self, inputs, training=False):
        x = self.embedding(inputs)
        x = self.normalize(x + self.attention(x, x))
        x = self.dropout(x, training=training)
        return self.ff_final(x)


ner_model = NERModel(4, vocab_size=len(vocabulary) + 2)
ner_model.compile(optimizer=keras.optimizers.Adam(5e-3), loss=CustomNonPaddingTokenLoss())
ner_model.fit(dataset_of("./data/train.txt"), epochs=6, verbose=2)

hits = total = 0
for x, y in dataset_of("./data/val.txt"):
    predictions = np.argmax(ner_model.predict(x, verbose=0), axis=-1)
    hits += int(np.sum((predictions == y.numpy()) * (y.numpy() > 0)))
    total += int(np.sum(y.numpy() > 0))
print("token accuracy", hits / total)
