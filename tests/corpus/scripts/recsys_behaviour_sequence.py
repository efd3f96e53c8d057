# backends: tensorflow
# agrees: trend
import keras
import numpy as np
import pandas as pd
import tensorflow as tf
from keras import layers
from keras.layers import StringLookup

# Behaviour sequence transformer on CSV files: sequences are joined with commas and split again in the pipeline.
keras.utils.set_random_seed(81)
rng = np.random.default_rng(81)
movies = [f"movie_{i}" for i in range(25)]
sequence_length = 4
rows = []
for user in range(400):
    likes = rng.integers(0, 5)
    seen = likes * 5 + rng.integers(0, 5, sequence_length)
    rated = rng.integers(0, 25)
    rows.append(
        (
            f"user_{user % 50}",
            ",".join(movies[i] for i in seen),
            movies[rated],
            5.0 if rated // 5 == likes else 2.0,
            ["F", "M"][user % 2],
        )
    )
CSV_HEADER = ["user_id", "sequence_movie_ids", "target_movie_id", "rating", "sex"]
data = pd.DataFrame(rows, columns=CSV_HEADER)
data[:320].to_csv("train_data.csv", index=False, sep="|", header=False)
data[320:].to_csv("test_data.csv", index=False, sep="|", header=False)


def get_dataset_from_csv(csv_file_path, shuffle=False, batch_size=32):
    def process(features):
        features = dict(features)
        movie_ids = tf.strings.split(features["sequence_movie_ids"], ",").to_tensor()
        movie_ids.set_shape((None, sequence_length))
        features["sequence_movie_ids"] = movie_ids
        target = features.pop("rating")
        return features, target

    return tf.data.experimental.make_csv_dataset(
        csv_file_path,
        batch_size=batch_size,
        column_names=CSV_HEADER,
        num_epochs=1,
        header=False,
        field_delim="|",
        shuffle=shuffle,
        column_defaults=["", "", "", 0.0, ""],
    ).map(process)


inputs = {
    "user_id": keras.Input(name="user_id", shape=(), dtype="string"),
    "sequence_movie_ids": keras.Input(name="sequence_movie_ids", shape=(sequence_length,), dtype="string"),
    "target_movie_id": keras.Input(name="target_movie_id", shape=(), dtype="string"),
    "sex": keras.Input(name="sex", shape=(), dtype="string"),
}
lookup = StringLookup(vocabulary=movies, mask_token=None, num_oov_indices=1)
embedding = layers.Embedding(len(movies) + 1, 8)
sequence = embedding(lookup(inputs["sequence_movie_ids"]))
target = layers.Reshape((1, 8))(embedding(lookup(inputs["target_movie_id"])))
x = layers.Concatenate(axis=1)([sequence, target])
attention = layers.MultiHeadAttention(2, 8, dropout=0.1)(x, x)
x = layers.LayerNormalization()(layers.Add()([x, attention]))
sex = layers.Embedding(3, 2)(StringLookup(vocabulary=["F", "M"])(inputs["sex"]))
features = layers.concatenate([layers.Flatten()(x), sex])
features = layers.Dense(24, activation="leaky_relu")(features)
model = keras.Model(inputs=inputs, outputs=layers.Dense(1)(features))
model.compile(
    optimizer=keras.optimizers.Adagrad(learning_rate=0.05),
    loss=keras.losses.MeanSquaredError(),
    metrics=[keras.metrics.MeanAbsoluteError()],
)
model.fit(get_dataset_from_csv("train_data.csv", shuffle=True), epochs=5, verbose=0)
_, rmse = model.evaluate(get_dataset_from_csv("test_data.csv"), verbose=0)
print(f"Test MAE: {round(rmse, 3)}")
