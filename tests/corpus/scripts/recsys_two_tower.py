# backends: tensorflow
# agrees: trend
"""Retrieval: two towers over strings, a loss in compute_loss, tf.data of dicts of strings."""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(17)
rng = np.random.default_rng(17)
users = [f"user-{i}" for i in range(30)]
movies = [f"movie {i}" for i in range(20)]
chosen = rng.integers(0, 30, 1200)
watched = (chosen % 5) * 4 + rng.integers(0, 4, 1200)
ratings = tf.data.Dataset.from_tensor_slices(
    {"user_id": [users[i] for i in chosen], "movie_title": [movies[i] for i in watched]}
)
shuffled = ratings.shuffle(1200, seed=42, reshuffle_each_iteration=False)
train, test = shuffled.take(1024).batch(128).cache(), shuffled.skip(1024).batch(88).cache()


def tower(vocabulary):
    return keras.Sequential(
        [layers.StringLookup(vocabulary=vocabulary, mask_token=None), layers.Embedding(len(vocabulary) + 1, 12)]
    )


class Retrieval(keras.Model):
    def __init__(self):
        super().__init__()
        self.user_model, self.movie_model = tower(users), tower(movies)

    def call(self, features):
        return self.user_model(features["user_id"]), self.movie_model(features["movie_title"])

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        user_embeddings, movie_embeddings = y_pred
        scores = tf.matmul(user_embeddings, movie_embeddings, transpose_b=True)
        targets = tf.range(tf.shape(scores)[0])
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=scores))


model = Retrieval()
model.compile(optimizer=keras.optimizers.Adagrad(learning_rate=0.5))
model.fit(train, epochs=5, verbose=0)
movie_vectors = model.movie_model(tf.constant(movies)).numpy()
user_vectors = model.user_model(tf.constant(users)).numpy()
best = np.argmax(user_vectors @ movie_vectors.T, axis=1)
print("recommended from the right genre:", float(np.mean(best // 4 == np.arange(30) % 5)))
