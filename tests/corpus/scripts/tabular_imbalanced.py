# backends: jax tensorflow torch
# agrees: trend
"""Fraud detection: class weights, many metrics, a checkpoint for each epoch."""

import csv

import keras
import numpy as np

np.random.seed(2)
keras.utils.set_random_seed(2)

with open("creditcard.csv", "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["v1", "v2", "v3", "v4", "amount", "class"])
    for _ in range(1200):
        fraud = int(np.random.rand() < 0.06)
        values = np.random.normal(1.2 * fraud, 1.0, 4).round(4)
        writer.writerow([*values, round(float(np.random.gamma(2, 30)), 2), fraud])

all_features, all_targets = [], []
with open("creditcard.csv") as f:
    for i, line in enumerate(f):
        if i == 0:
            print("HEADER:", line.strip())
            continue
        fields = line.strip().split(",")
        all_features.append([float(v) for v in fields[:-1]])
        all_targets.append([int(fields[-1])])
features, targets = np.array(all_features, dtype="float32"), np.array(all_targets, dtype="uint8")
print("features.shape:", features.shape)

num_val_samples = int(len(features) * 0.2)
train_features, train_targets = features[:-num_val_samples], targets[:-num_val_samples]
val_features, val_targets = features[-num_val_samples:], targets[-num_val_samples:]
counts = np.bincount(train_targets[:, 0])
weight_for_0, weight_for_1 = 1.0 / counts[0], 1.0 / counts[1]
mean, std = train_features.mean(axis=0), train_features.std(axis=0)
train_features, val_features = (train_features - mean) / std, (val_features - mean) / std

model = keras.Sequential(
    [
        keras.Input(shape=train_features.shape[1:]),
        keras.layers.Dense(32, activation="relu"),
        keras.layers.Dense(32, activation="relu"),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
)
metrics = [
    keras.metrics.FalseNegatives(name="fn"),
    keras.metrics.TruePositives(name="tp"),
    keras.metrics.Precision(name="precision"),
    keras.metrics.Recall(name="recall"),
]
model.compile(optimizer=keras.optimizers.Adam(1e-2), loss="binary_crossentropy", metrics=metrics)
history = model.fit(
    train_features,
    train_targets,
    batch_size=128,
    epochs=5,
    verbose=0,
    callbacks=[keras.callbacks.ModelCheckpoint("fraud_model_at_epoch_{epoch}.keras")],
    validation_data=(val_features, val_targets),
    class_weight={0: weight_for_0 * 100, 1: weight_for_1 * 100},
)
print("loss", history.history["loss"][-1], "recall", history.history["val_recall"][-1])
