# backends: tensorflow
# agrees: trend
"""From raw strings: a standardisation of one's own, TextVectorization in the tf.data pipeline, an end-to-end model."""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"

import re
import string

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(1)

good = ["a wonderful film", "great <br /> acting!", "loved every minute", "truly superb", "an instant classic"]
bad = ["a dreadful film", "awful <br /> acting!", "hated every minute", "truly terrible", "an instant failure"]
filler = ["the plot moved along.", "it has a dog in it.", "we saw it at night.", "two hours long."]
rng = np.random.default_rng(0)
texts, labels = [], []
for _ in range(400):
    label = int(rng.integers(2))
    texts.append(f"{rng.choice(filler)} {rng.choice(good if label else bad)} {rng.choice(filler)}")
    labels.append(label)

raw_ds = tf.data.Dataset.from_tensor_slices((texts, labels)).shuffle(400, seed=1, reshuffle_each_iteration=False)
raw_train_ds, raw_val_ds = raw_ds.take(320).batch(32), raw_ds.skip(320).batch(32)
for text_batch, label_batch in raw_train_ds.take(1):
    for i in range(2):
        print(text_batch.numpy()[i], label_batch.numpy()[i])


def custom_standardization(input_data):
    lowercase = tf.strings.lower(input_data)
    stripped_html = tf.strings.regex_replace(lowercase, "<br />", " ")
    return tf.strings.regex_replace(stripped_html, f"[{re.escape(string.punctuation)}]", "")


vectorize_layer = keras.layers.TextVectorization(
    standardize=custom_standardization, max_tokens=200, output_mode="int", output_sequence_length=16
)
vectorize_layer.adapt(raw_train_ds.map(lambda x, y: x))


def vectorize_text(text, label):
    return vectorize_layer(tf.expand_dims(text, -1)), label


train_ds = raw_train_ds.map(vectorize_text).cache().prefetch(buffer_size=10)
val_ds = raw_val_ds.map(vectorize_text).cache().prefetch(buffer_size=10)

inputs = keras.Input(shape=(None,), dtype="int64")
x = layers.Embedding(200, 16)(inputs)
x = layers.Conv1D(16, 5, padding="valid", activation="relu", strides=2)(x)
x = layers.GlobalMaxPooling1D()(x)
x = layers.Dense(16, activation="relu")(x)
predictions = layers.Dense(1, activation="sigmoid", name="predictions")(x)
model = keras.Model(inputs, predictions)
model.compile(loss="binary_crossentropy", optimizer="adam", metrics=["accuracy"])
model.fit(train_ds, validation_data=val_ds, epochs=3, verbose=2)

# An end-to-end model that takes strings.
inputs = keras.Input(shape=(1,), dtype="string")
end_to_end_model = keras.Model(inputs, model(vectorize_layer(inputs)))
end_to_end_model.compile(loss="binary_crossentropy", optimizer="adam", metrics=["accuracy"])
print("end to end", end_to_end_model.evaluate(raw_val_ds.map(lambda x, y: (tf.expand_dims(x, -1), y)), verbose=0))
print(end_to_end_model.predict(tf.constant([["truly superb"], ["truly terrible"]]), verbose=0).round(3))
