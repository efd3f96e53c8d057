# backends: jax tensorflow torch
# agrees: trend
"""Collaborative filtering with user and item embeddings and biases."""

import keras
import numpy as np
import pandas as pd
from keras import layers, ops

keras.utils.set_random_seed(7)
rng = np.random.default_rng(7)
taste, kind = rng.normal(size=(60, 3)), rng.normal(size=(40, 3))
df = pd.DataFrame({"userId": rng.integers(0, 60, 2000), "movieId": 100 + rng.integers(0, 40, 2000)})
df["rating"] = np.clip((taste[df.userId] * kind[df.movieId - 100]).sum(axis=1) + 3, 0.5, 5)

user_ids = df["userId"].unique().tolist()
user2user_encoded = {x: i for i, x in enumerate(user_ids)}
movie_ids = df["movieId"].unique().tolist()
movie2movie_encoded = {x: i for i, x in enumerate(movie_ids)}
df["user"] = df["userId"].map(user2user_encoded)
df["movie"] = df["movieId"].map(movie2movie_encoded)
num_users, num_movies = len(user2user_encoded), len(movie2movie_encoded)
min_rating, max_rating = min(df["rating"]), max(df["rating"])
print(f"Number of users: {num_users}, Number of Movies: {num_movies}")

df = df.sample(frac=1, random_state=42)
x = df[["user", "movie"]].values
y = df["rating"].apply(lambda x: (x - min_rating) / (max_rating - min_rating)).values
train_indices = int(0.9 * df.shape[0])
x_train, x_val, y_train, y_val = x[:train_indices], x[train_indices:], y[:train_indices], y[train_indices:]


class RecommenderNet(keras.Model):
    def __init__(self, num_users, num_movies, embedding_size, **kwargs):
        super().__init__(**kwargs)
        self.user_embedding = layers.Embedding(
            num_users,
            embedding_size,
            embeddings_initializer="he_normal",
            embeddings_regularizer=keras.regularizers.l2(1e-6),
        )
        self.user_bias = layers.Embedding(num_users, 1)
        self.movie_embedding = layers.Embedding(
            num_movies,
            embedding_size,
            embeddings_initializer="he_normal",
            embeddings_regularizer=keras.regularizers.l2(1e-6),
        )
        self.movie_bias = layers.Embedding(num_movies, 1)

    def call(self, inputs):
        user_vector, user_bias = self.user_embedding(inputs[:, 0]), self.user_bias(inputs[:, 0])
        movie_vector, movie_bias = self.movie_embedding(inputs[:, 1]), self.movie_bias(inputs[:, 1])
        dot_user_movie = ops.sum(user_vector * movie_vector, axis=1, keepdims=True)
        return ops.nn.sigmoid(dot_user_movie + user_bias + movie_bias)


model = RecommenderNet(num_users, num_movies, 8)
model.compile(loss=keras.losses.BinaryCrossentropy(), optimizer=keras.optimizers.Adam(learning_rate=0.01))
history = model.fit(x=x_train, y=y_train, batch_size=64, epochs=4, verbose=2, validation_data=(x_val, y_val))

user = df.userId.iloc[0]
unseen = [[movie2movie_encoded[m]] for m in movie_ids if m not in set(df[df.userId == user].movieId)]
user_movie_array = np.hstack(([[user2user_encoded[user]]] * len(unseen), unseen))
ratings = model.predict(user_movie_array, verbose=0).flatten()
print("Showing recommendations:", len(ratings.argsort()[-3:][::-1]))
