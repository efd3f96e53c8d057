# backends: tensorflow jax
# agrees: trend
import keras

keras.mixed_precision.set_global_policy("mixed_float16")

import numpy as np
from keras import layers

print("Compute dtype:", keras.mixed_precision.global_policy().compute_dtype)
print("Variable dtype:", keras.mixed_precision.global_policy().variable_dtype)
keras.utils.set_random_seed(21)

rng = np.random.default_rng(21)
x = rng.normal(size=(1024, 20)).astype("float32")
y = (x[:, :10].sum(axis=1) > x[:, 10:].sum(axis=1)).astype("int32")

inputs = keras.Input(shape=(20,), name="digits")
h = layers.Dense(64, activation="relu", name="dense_1")(inputs)
h = layers.Dense(64, activation="relu", name="dense_2")(h)
h = layers.Dense(2, name="dense_logits")(h)
outputs = layers.Activation("softmax", dtype="float32", name="predictions")(h)
model = keras.Model(inputs=inputs, outputs=outputs)
print("Outputs dtype:", outputs.dtype)

model.compile(
    loss="sparse_categorical_crossentropy",
    optimizer=keras.optimizers.RMSprop(learning_rate=2e-3),
    metrics=["accuracy"],
)
initial_weights = model.get_weights()
history = model.fit(x, y, batch_size=128, epochs=6, validation_split=0.2, verbose=2)
test_scores = model.evaluate(x, y, batch_size=128, verbose=0)
print("Test loss:", test_scores[0])
print("Test accuracy:", test_scores[1])
print("loss scaling:", type(model.optimizer).__name__)

model.set_weights(initial_weights)
print("Accuracy of the initial weights is lower:", model.evaluate(x, y, verbose=0)[1] < test_scores[1])
