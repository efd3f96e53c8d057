# backends: tensorflow
# agrees: rounding
"""A small reader of captchas: the loss is computed by a layer at the end of the model (CTC)."""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"
import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(44)
rng = np.random.default_rng(44)
characters, max_length, width = 5, 3, 24
glyphs = rng.uniform(0, 1, (characters, 6, 8))
codes = rng.integers(0, characters, (256, max_length))
images = np.concatenate([glyphs[codes[:, k]] for k in range(max_length)], axis=2)
images = (images + rng.normal(0, 0.05, images.shape)).astype("float32")[..., None]

split = 224


def encode_single_sample(image, label):
    return {"image": tf.transpose(image, [1, 0, 2]), "label": tf.cast(label + 1, tf.float32)}


train_dataset = tf.data.Dataset.from_tensor_slices((images[:split], codes[:split])).map(encode_single_sample).batch(32)
validation_dataset = (
    tf.data.Dataset.from_tensor_slices((images[split:], codes[split:])).map(encode_single_sample).batch(32)
)


class CTCLayer(layers.Layer):
    def call(self, y_true, y_pred):
        batch = ops.shape(y_true)[0]
        lengths = ops.full((batch,), ops.shape(y_pred)[1], dtype="int32")
        label_lengths = ops.full((batch,), max_length, dtype="int32")
        loss = ops.ctc_loss(ops.cast(y_true, "int32"), y_pred, label_lengths, lengths)
        self.add_loss(ops.mean(loss))
        return y_pred


input_img = layers.Input((width, 6, 1), name="image", dtype="float32")
labels = layers.Input(name="label", shape=(max_length,), dtype="float32")
x = layers.Conv2D(8, 3, activation="relu", padding="same")(input_img)
x = layers.MaxPooling2D((2, 2))(x)
x = layers.Reshape((width // 2, 3 * 8))(x)
x = layers.Dense(24, activation="relu")(x)
x = layers.Bidirectional(layers.GRU(16, return_sequences=True))(x)
x = layers.Dense(characters + 1, name="logits")(x)
output = CTCLayer(name="ctc_loss")(labels, x)
model = keras.models.Model(inputs=[input_img, labels], outputs=output, name="ocr_model_v1")
model.compile(optimizer=keras.optimizers.Adam(0.01))
early_stopping = keras.callbacks.EarlyStopping(monitor="val_loss", patience=3, restore_best_weights=True)
model.fit(train_dataset, validation_data=validation_dataset, epochs=4, callbacks=[early_stopping], verbose=2)

prediction_model = keras.models.Model(model.input[0], model.get_layer(name="logits").output)
batch = next(iter(validation_dataset))
best = np.argmax(prediction_model.predict(batch["image"], verbose=0), axis=-1)
print("read", best.shape)
