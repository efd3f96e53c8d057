# backends: jax tensorflow torch
# agrees: rounding
import numpy as np
import pandas as pd
import keras
from keras import layers

# Fuel efficiency from a DataFrame, with an adapted Normalization layer.
pd.options.mode.copy_on_write = True
keras.utils.set_random_seed(10)
rng = np.random.default_rng(10)
dataset = pd.DataFrame(
    {
        "Cylinders": rng.choice([4, 6, 8], 320),
        "Displacement": rng.normal(190, 60, 320),
        "Horsepower": rng.normal(105, 30, 320),
        "Weight": rng.normal(2900, 500, 320),
        "Origin": rng.choice(["USA", "Europe", "Japan"], 320),
    }
)
dataset["MPG"] = 45 - 0.006 * dataset.Weight - 0.03 * dataset.Horsepower + rng.normal(0, 1, 320)
dataset = pd.get_dummies(dataset, columns=["Origin"], prefix="", prefix_sep="")
train_dataset = dataset.sample(frac=0.8, random_state=0)
test_dataset = dataset.drop(train_dataset.index)
print(train_dataset.describe().transpose()[["mean", "std"]].round(3).to_string())

train_features, test_features = train_dataset.astype("float32"), test_dataset.astype("float32")
train_labels, test_labels = train_features.pop("MPG"), test_features.pop("MPG")

normalizer = layers.Normalization(axis=-1)
normalizer.adapt(np.array(train_features))


def build_and_compile_model(norm):
    model = keras.Sequential(
        [norm, layers.Dense(32, activation="relu"), layers.Dense(32, activation="relu"), layers.Dense(1)]
    )
    model.compile(loss="mean_absolute_error", optimizer=keras.optimizers.Adam(0.01))
    return model


test_results = {}
for name, model in {
    "linear_model": keras.Sequential([normalizer, layers.Dense(units=1)]),
    "dnn_model": build_and_compile_model(normalizer),
}.items():
    if name == "linear_model":
        model.compile(optimizer=keras.optimizers.Adam(learning_rate=0.1), loss="mean_absolute_error")
    history = model.fit(train_features, train_labels, epochs=8, verbose=0, validation_split=0.2, shuffle=False)
    test_results[name] = model.evaluate(test_features, test_labels, verbose=0)
    print(name, [round(value, 3) for value in history.history["val_loss"]])
print(pd.DataFrame(test_results, index=["Mean absolute error [MPG]"]).T)
