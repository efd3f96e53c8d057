# backends: tensorflow
# agrees: trend
"""Structured data with FeatureSpace: a dict of raw columns in, one vector out."""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import pandas as pd
import tensorflow as tf
from keras.utils import FeatureSpace

keras.utils.set_random_seed(1337)
rng = np.random.default_rng(1337)
N = 400
dataframe = pd.DataFrame(
    {
        "sex": rng.integers(0, 2, N),
        "cp": rng.integers(0, 5, N),
        "thal": rng.choice(["fixed", "normal", "reversible"], N),
        "age": rng.integers(30, 75, N),
        "chol": rng.normal(240, 40, N),
        "oldpeak": rng.gamma(1.0, 1.0, N),
    }
)
risk = 0.05 * (dataframe.age - 50) + 0.8 * (dataframe.thal == "reversible") + 0.6 * dataframe.oldpeak - 0.8
dataframe["target"] = (rng.random(N) < 1 / (1 + np.exp(-2 * risk))).astype(int)

val_dataframe = dataframe.sample(frac=0.2, random_state=1337)
train_dataframe = dataframe.drop(val_dataframe.index)
print("Using", len(train_dataframe), "samples for training and", len(val_dataframe), "for validation")


def dataframe_to_dataset(dataframe):
    dataframe = dataframe.copy()
    labels = dataframe.pop("target")
    ds = tf.data.Dataset.from_tensor_slices(({name: column.to_numpy() for name, column in dataframe.items()}, labels))
    return ds.shuffle(buffer_size=len(dataframe))


train_ds, val_ds = dataframe_to_dataset(train_dataframe).batch(32), dataframe_to_dataset(val_dataframe).batch(32)

feature_space = FeatureSpace(
    features={
        "sex": "integer_categorical",
        "cp": "integer_categorical",
        "thal": "string_categorical",
        "age": "float_discretized",
        "chol": "float_normalized",
        "oldpeak": "float_normalized",
    },
    crosses=[("sex", "cp")],
    crossing_dim=16,
    output_mode="concat",
)
feature_space.adapt(train_ds.map(lambda x, _: x))

preprocessed_train_ds = train_ds.map(lambda x, y: (feature_space(x), y), num_parallel_calls=tf.data.AUTOTUNE)
preprocessed_val_ds = val_ds.map(lambda x, y: (feature_space(x), y), num_parallel_calls=tf.data.AUTOTUNE)

dict_inputs = feature_space.get_inputs()
encoded_features = feature_space.get_encoded_features()
x = keras.layers.Dense(32, activation="relu")(encoded_features)
x = keras.layers.Dropout(0.3)(x)
predictions = keras.layers.Dense(1, activation="sigmoid")(x)
training_model = keras.Model(inputs=encoded_features, outputs=predictions)
training_model.compile(optimizer="adam", loss="binary_crossentropy", metrics=["accuracy"])
inference_model = keras.Model(inputs=dict_inputs, outputs=predictions)

training_model.fit(
    preprocessed_train_ds.prefetch(tf.data.AUTOTUNE), epochs=8, validation_data=preprocessed_val_ds, verbose=2
)
sample = {"sex": 1, "cp": 1, "thal": "fixed", "age": 60, "chol": 233.0, "oldpeak": 2.3}
input_dict = {name: keras.ops.convert_to_tensor([value]) for name, value in sample.items()}
predictions = inference_model.predict(input_dict, verbose=0)
print("probability is one:", 0.0 <= float(predictions[0][0]) <= 1.0)
