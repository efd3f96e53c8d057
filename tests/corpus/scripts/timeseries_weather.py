# backends: tensorflow jax
# agrees: rounding
"""Forecasting with timeseries_dataset_from_array and an LSTM."""

import keras
import numpy as np
import pandas as pd

keras.utils.set_random_seed(1)
hours = np.arange(1600)
rng = np.random.default_rng(1)
df = pd.DataFrame(
    {
        "Pressure": 1000 + 5 * np.sin(hours / 50) + rng.normal(0, 0.5, 1600),
        "Temperature": 10 + 8 * np.sin(hours / 24 * 2 * np.pi) + rng.normal(0, 0.5, 1600),
        "Humidity": 60 + 10 * np.cos(hours / 24 * 2 * np.pi) + rng.normal(0, 1, 1600),
    }
)

split_fraction = 0.75
train_split = int(split_fraction * df.shape[0])
step, past, future, batch_size, epochs = 2, 24, 6, 64, 3


def normalize(data, train_split):
    data_mean = data[:train_split].mean(axis=0)
    data_std = data[:train_split].std(axis=0)
    return (data - data_mean) / data_std


features = pd.DataFrame(normalize(df.values, train_split))
train_data, val_data = features.loc[0 : train_split - 1], features.loc[train_split:]
start, end = past + future, past + future + train_split
x_train, y_train = train_data.values, features.iloc[start:end][[1]]
sequence_length = int(past / step)

dataset_train = keras.preprocessing.timeseries_dataset_from_array(
    x_train, y_train, sequence_length=sequence_length, sampling_rate=step, batch_size=batch_size
)
x_end = len(val_data) - past - future
label_start = train_split + past + future
dataset_val = keras.preprocessing.timeseries_dataset_from_array(
    val_data.iloc[:x_end].values,
    features.iloc[label_start:][[1]],
    sequence_length=sequence_length,
    sampling_rate=step,
    batch_size=batch_size,
)
for batch in dataset_train.take(1):
    inputs, targets = batch
print("Input shape:", inputs.numpy().shape)
print("Target shape:", targets.numpy().shape)

inputs = keras.layers.Input(shape=(inputs.shape[1], inputs.shape[2]))
lstm_out = keras.layers.LSTM(16)(inputs)
outputs = keras.layers.Dense(1)(lstm_out)
model = keras.Model(inputs=inputs, outputs=outputs)
model.compile(optimizer=keras.optimizers.Adam(learning_rate=0.005), loss="mse")

path_checkpoint = "model_checkpoint.weights.h5"
es_callback = keras.callbacks.EarlyStopping(monitor="val_loss", min_delta=0, patience=5)
modelckpt_callback = keras.callbacks.ModelCheckpoint(
    monitor="val_loss", filepath=path_checkpoint, verbose=1, save_weights_only=True, save_best_only=True
)
history = model.fit(
    dataset_train, epochs=epochs, validation_data=dataset_val, callbacks=[es_callback, modelckpt_callback], verbose=2
)
for x, y in dataset_val.take(2):
    prediction = model.predict(x, verbose=0)[0]
    print("Single Step Prediction", prediction.shape)
