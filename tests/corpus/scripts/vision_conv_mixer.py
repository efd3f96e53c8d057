# backends: torch
# agrees: trend
import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
from keras import layers
import numpy as np
from sklearn.datasets import load_digits

keras.utils.set_random_seed(17)

x, y = load_digits(return_X_y=True)
x = x.reshape(-1, 8, 8, 1).astype("float32")
val_split = 0.2
val_indices = int(len(x) * val_split)
new_x_train, new_y_train = x[val_indices:], y[val_indices:]
x_val, y_val = x[:val_indices], y[:val_indices]
print(f"Training data samples: {len(new_x_train)}")
print(f"Validation data samples: {len(x_val)}")


def activation_block(x):
    x = layers.Activation("gelu")(x)
    return layers.BatchNormalization()(x)


def conv_stem(x, filters, patch_size):
    x = layers.Conv2D(filters, kernel_size=patch_size, strides=patch_size)(x)
    return activation_block(x)


def conv_mixer_block(x, filters, kernel_size):
    x0 = x
    x = layers.DepthwiseConv2D(kernel_size=kernel_size, padding="same")(x)
    x = layers.Add()([activation_block(x), x0])
    x = layers.Conv2D(filters, kernel_size=1)(x)
    return activation_block(x)


def get_conv_mixer(image_size=8, filters=24, depth=2, kernel_size=3, patch_size=2, num_classes=10):
    inputs = keras.Input((image_size, image_size, 1))
    x = layers.Rescaling(scale=1.0 / 16)(inputs)
    x = conv_stem(x, filters, patch_size)
    for _ in range(depth):
        x = conv_mixer_block(x, filters, kernel_size)
    x = layers.GlobalAvgPool2D()(x)
    return keras.Model(inputs, layers.Dense(num_classes, activation="softmax")(x))


def run_experiment(model):
    optimizer = keras.optimizers.AdamW(learning_rate=0.01, weight_decay=0.0001)
    model.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    filepath = "checkpoint.keras"
    checkpoint = keras.callbacks.ModelCheckpoint(filepath, monitor="val_accuracy", save_best_only=True)
    history = model.fit(
        new_x_train, new_y_train, validation_data=(x_val, y_val), batch_size=128, epochs=5, callbacks=[checkpoint]
    )
    model = keras.models.load_model(filepath)
    _, accuracy = model.evaluate(x_val, y_val)
    print(f"Test accuracy: {round(accuracy * 100, 2)}%")
    return history, model


if __name__ == "__main__":
    history, conv_mixer_model = run_experiment(get_conv_mixer())
    kernel = conv_mixer_model.layers[2].get_weights()[0]
    print("Patch embeddings:", kernel.shape)
