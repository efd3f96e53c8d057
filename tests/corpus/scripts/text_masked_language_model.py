# backends: tensorflow
# agrees: trend
"""BERT-like masked language modelling: a train_step of one's own in TensorFlow's style, then fine-tuning."""

import keras
import numpy as np
import tensorflow as tf
from dataclasses import dataclass
from keras import layers

keras.utils.set_random_seed(30)


@dataclass
class Config:
    MAX_LEN = 12
    BATCH_SIZE = 32
    VOCAB_SIZE = 40
    EMBED_DIM = 16


config = Config()
rng = np.random.default_rng(30)
MASK = config.VOCAB_SIZE - 1
starts = rng.integers(0, 30, (320, 1))
tokens = (starts + np.arange(config.MAX_LEN)) % 30 + 1
labels = (starts[:, 0] > 15).astype("float32")


def get_masked_input_and_labels(encoded_texts):
    inp_mask = rng.random(encoded_texts.shape) < 0.15
    labels = np.where(inp_mask, encoded_texts, -1)
    sample_weights = np.where(inp_mask, 1.0, 0.0).astype("float32")
    return np.where(inp_mask, MASK, encoded_texts), np.where(labels < 0, encoded_texts, labels), sample_weights


x_masked, y_masked, sample_weights = get_masked_input_and_labels(tokens)
mlm_ds = tf.data.Dataset.from_tensor_slices((x_masked, y_masked, sample_weights)).batch(config.BATCH_SIZE)

loss_fn = keras.losses.SparseCategoricalCrossentropy(reduction=None)


class MaskedLanguageModel(keras.Model):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def train_step(self, inputs):
        features, labels, sample_weight = inputs
        with tf.GradientTape() as tape:
            predictions = self(features, training=True)
            loss = tf.reduce_mean(loss_fn(labels, predictions, sample_weight=sample_weight))
        trainable_vars = self.trainable_variables
        gradients = tape.gradient(loss, trainable_vars)
        self.optimizer.apply_gradients(zip(gradients, trainable_vars))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    @property
    def metrics(self):
        return [self.loss_tracker]


def create_masked_language_bert_model():
    inputs = layers.Input((config.MAX_LEN,), dtype="int64")
    embeddings = layers.Embedding(config.VOCAB_SIZE, config.EMBED_DIM, name="word_embedding")(inputs)
    positions = layers.Embedding(config.MAX_LEN, config.EMBED_DIM)(tf.range(config.MAX_LEN))
    x = embeddings + positions
    attention = layers.MultiHeadAttention(2, config.EMBED_DIM // 2, name="encoder_0")(x, x)
    x = layers.LayerNormalization(epsilon=1e-6)(x + attention)
    x = layers.LayerNormalization(epsilon=1e-6, name="encoder_out")(x + layers.Dense(config.EMBED_DIM, "relu")(x))
    return MaskedLanguageModel(inputs, layers.Dense(config.VOCAB_SIZE, name="mlm_cls", activation="softmax")(x))


bert_masked_model = create_masked_language_bert_model()
bert_masked_model.compile(optimizer=keras.optimizers.Adam(0.01))
history = bert_masked_model.fit(mlm_ds, epochs=4, verbose=0)
print("masked loss", history.history["loss"])
bert_masked_model.save_weights("bert_mlm.weights.h5")

pretrained = keras.Model(bert_masked_model.input, bert_masked_model.get_layer("encoder_out").output)
pretrained.trainable = False
inputs = layers.Input((config.MAX_LEN,), dtype="int64")
classifier = keras.Model(inputs, layers.Dense(1, "sigmoid")(layers.GlobalMaxPooling1D()(pretrained(inputs))))
classifier.compile(optimizer=keras.optimizers.Adam(0.02), loss="binary_crossentropy", metrics=["accuracy"])
finetuned = classifier.fit(tokens, labels, epochs=3, batch_size=64, shuffle=False, verbose=0)
print("fine-tuning", finetuned.history["loss"])
