# backends: tensorflow
# agrees: trend
import tensorflow as tf
import keras
from keras import layers
import math
import numpy as np
import pandas as pd

# Wide & deep on a CSV file that the script writes; strings are looked up inside the model.
keras.utils.set_random_seed(50)
rng = np.random.default_rng(50)

CSV_HEADER = ["Elevation", "Slope", "Soil_Type", "Wilderness", "Cover_Type"]
frame = pd.DataFrame(
    {
        "Elevation": rng.normal(2800, 300, 500).round(1),
        "Slope": rng.uniform(0, 40, 500).round(1),
        "Soil_Type": rng.choice(["sand", "clay", "rock"], 500),
        "Wilderness": rng.choice(["yes", "no"], 500),
    }
)
frame["Cover_Type"] = (frame.Elevation > 2800).astype(int) + (frame.Soil_Type == "rock").astype(int)
splits = frame[:400], frame[400:]
train_data_file, test_data_file = "train_data.csv", "test_data.csv"
splits[0].to_csv(train_data_file, index=False)
splits[1].to_csv(test_data_file, index=False)

NUMERIC_FEATURE_NAMES = ["Elevation", "Slope"]
CATEGORICAL_FEATURES_WITH_VOCABULARY = {
    name: sorted(pd.read_csv(train_data_file)[name].unique()) for name in ("Soil_Type", "Wilderness")
}


def get_dataset_from_csv(csv_file_path, batch_size, shuffle=False):
    dataset = tf.data.experimental.make_csv_dataset(
        csv_file_path,
        batch_size=batch_size,
        column_names=CSV_HEADER,
        column_defaults=[[0.0], [0.0], ["NA"], ["NA"], [0]],
        label_name="Cover_Type",
        num_epochs=1,
        header=True,
        shuffle=shuffle,
    )
    return dataset.cache()


def create_model_inputs():
    inputs = {name: layers.Input(name=name, shape=(), dtype="float32") for name in NUMERIC_FEATURE_NAMES}
    return inputs | {
        name: layers.Input(name=name, shape=(), dtype="string") for name in CATEGORICAL_FEATURES_WITH_VOCABULARY
    }


def encode_inputs(inputs, use_embedding=False):
    encoded_features = [
        layers.Rescaling(1 / 1000)(layers.Reshape((1,))(inputs[name])) for name in NUMERIC_FEATURE_NAMES
    ]
    for name, vocabulary in CATEGORICAL_FEATURES_WITH_VOCABULARY.items():
        lookup = layers.StringLookup(
            vocabulary=vocabulary, num_oov_indices=0, output_mode="int" if use_embedding else "one_hot"
        )
        value = lookup(inputs[name] if use_embedding else layers.Reshape((1,))(inputs[name]))
        if use_embedding:
            value = layers.Embedding(len(vocabulary), int(math.sqrt(len(vocabulary))) + 1)(value)
        encoded_features.append(value)
    return layers.concatenate(encoded_features)


def create_wide_and_deep_model():
    inputs = create_model_inputs()
    wide = layers.BatchNormalization()(encode_inputs(inputs))
    deep = encode_inputs(inputs, use_embedding=True)
    for units in [16, 16]:
        deep = layers.Dense(units)(deep)
        deep = layers.ReLU()(layers.BatchNormalization()(deep))
    outputs = layers.Dense(units=3, activation="softmax")(layers.concatenate([wide, deep]))
    return keras.Model(inputs=inputs, outputs=outputs)


model = create_wide_and_deep_model()
model.compile(
    optimizer=keras.optimizers.Adam(learning_rate=0.01),
    loss=keras.losses.SparseCategoricalCrossentropy(),
    metrics=[keras.metrics.SparseCategoricalAccuracy()],
)
print("Start training the model...")
model.fit(get_dataset_from_csv(train_data_file, 40, shuffle=True), epochs=8, verbose=2)
_, accuracy = model.evaluate(get_dataset_from_csv(test_data_file, 40), verbose=0)
print(f"Test accuracy: {round(accuracy * 100, 2)}%")
