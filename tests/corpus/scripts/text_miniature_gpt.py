# backends: tensorflow jax
# agrees: trend
"""A miniature GPT on made-up sentences, with a callback that generates text from it."""

import keras
import numpy as np
import tensorflow.data as tf_data
from keras import layers, ops

keras.utils.set_random_seed(64)
words = ["", "cats", "dogs", "fish", "eat", "chase", "like", "small", "red", "mice", "balls", "worms", "and", "."]
vocab_size, maxlen, embed_dim, batch_size = len(words), 10, 16, 32

rng = np.random.default_rng(64)
texts = []
for _ in range(256):
    subject, verb, object_ = rng.integers(1, 4), rng.integers(4, 7), rng.integers(9, 12)
    one = [subject, verb, rng.integers(7, 9), object_, 13]
    texts.append((one + [subject, 12, verb, object_, 13] + [0])[: maxlen + 1])
texts = np.array(texts)
text_ds = tf_data.Dataset.from_tensor_slices((texts[:, :-1], texts[:, 1:])).shuffle(256, seed=2).batch(batch_size)


def causal_attention_mask(batch_size, n_dest, n_src, dtype):
    i = ops.arange(n_dest)[:, None]
    j = ops.arange(n_src)
    mask = ops.cast(i >= j - n_src + n_dest, dtype)
    return ops.broadcast_to(ops.reshape(mask, [1, n_dest, n_src]), (batch_size, n_dest, n_src))


class TransformerBlock(layers.Layer):
    def __init__(self, embed_dim, num_heads, ff_dim):
        super().__init__()
        self.att = layers.MultiHeadAttention(num_heads, embed_dim)
        self.ffn = keras.Sequential([layers.Dense(ff_dim, activation="relu"), layers.Dense(embed_dim)])
        self.layernorm1, self.layernorm2 = layers.LayerNormalization(), layers.LayerNormalization()

    def call(self, inputs):
        input_shape = ops.shape(inputs)
        causal_mask = causal_attention_mask(input_shape[0], input_shape[1], input_shape[1], "bool")
        out1 = self.layernorm1(inputs + self.att(inputs, inputs, attention_mask=causal_mask))
        return self.layernorm2(out1 + self.ffn(out1))


class TextGenerator(keras.callbacks.Callback):
    def __init__(self, max_tokens, start_tokens, print_every=1):
        self.max_tokens, self.start_tokens, self.print_every = max_tokens, start_tokens, print_every

    def on_epoch_end(self, epoch, logs=None):
        if (epoch + 1) % self.print_every != 0:
            return
        tokens = list(self.start_tokens)
        while len(tokens) < self.max_tokens:
            x = np.array([tokens + [0] * (maxlen - len(tokens))])
            y, _ = self.model.predict(x, verbose=0)
            tokens.append(int(np.argmax(y[0][len(tokens) - 1])))
        print(f"generated {len(tokens)} words")


inputs = layers.Input(shape=(maxlen,), dtype="int32")
x = layers.Embedding(vocab_size, embed_dim)(inputs) + layers.Embedding(maxlen, embed_dim)(ops.arange(maxlen))
x = TransformerBlock(embed_dim, 2, 16)(x)
outputs = layers.Dense(vocab_size)(x)
model = keras.Model(inputs=inputs, outputs=[outputs, x])
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("adam", loss=[loss_fn, None])

text_gen_callback = TextGenerator(6, [1, 4], print_every=2)
model.fit(text_ds, verbose=2, epochs=4, callbacks=[text_gen_callback])
