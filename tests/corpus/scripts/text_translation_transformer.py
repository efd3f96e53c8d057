# backends: tensorflow
# agrees: trend
import tensorflow as tf
import keras
from keras import layers, ops
import numpy as np

# A tiny encoder-decoder transformer on made-up pairs; dict inputs from tf.data, masks from the padding.
keras.utils.set_random_seed(99)
rng = np.random.default_rng(99)
vocab, length, dim, batch = 30, 8, 16, 32
source = rng.integers(3, vocab, (256, length))
target = np.concatenate([np.ones((256, 1), int), source[:, ::-1], np.full((256, 1), 2)], axis=1)


def format_dataset(eng, spa):
    return {"encoder_inputs": eng, "decoder_inputs": spa[:, :-1]}, spa[:, 1:]


def make_dataset(eng, spa):
    dataset = tf.data.Dataset.from_tensor_slices((eng, spa)).batch(batch).map(format_dataset)
    return dataset.cache().shuffle(8, seed=4, reshuffle_each_iteration=False).prefetch(2)


train_ds, val_ds = make_dataset(source[:192], target[:192]), make_dataset(source[192:], target[192:])
for inputs, targets in train_ds.take(1):
    print(f'inputs["encoder_inputs"].shape: {inputs["encoder_inputs"].shape}')
    print(f"targets.shape: {targets.shape}")


class PositionalEmbedding(layers.Layer):
    def __init__(self, sequence_length, vocab_size, embed_dim, **kwargs):
        super().__init__(**kwargs)
        self.token_embeddings = layers.Embedding(vocab_size, embed_dim)
        self.position_embeddings = layers.Embedding(sequence_length, embed_dim)

    def call(self, inputs):
        positions = ops.arange(0, ops.shape(inputs)[-1], 1)
        return self.token_embeddings(inputs) + self.position_embeddings(positions)


class TransformerEncoder(layers.Layer):
    def __init__(self, embed_dim, dense_dim, num_heads, **kwargs):
        super().__init__(**kwargs)
        self.attention = layers.MultiHeadAttention(num_heads, embed_dim)
        self.dense_proj = keras.Sequential([layers.Dense(dense_dim, activation="relu"), layers.Dense(embed_dim)])
        self.layernorm_1, self.layernorm_2 = layers.LayerNormalization(), layers.LayerNormalization()

    def call(self, inputs):
        proj_input = self.layernorm_1(inputs + self.attention(query=inputs, value=inputs, key=inputs))
        return self.layernorm_2(proj_input + self.dense_proj(proj_input))


class TransformerDecoder(layers.Layer):
    def __init__(self, embed_dim, latent_dim, num_heads, **kwargs):
        super().__init__(**kwargs)
        self.attention_1 = layers.MultiHeadAttention(num_heads, embed_dim)
        self.attention_2 = layers.MultiHeadAttention(num_heads, embed_dim)
        self.dense_proj = keras.Sequential([layers.Dense(latent_dim, activation="relu"), layers.Dense(embed_dim)])
        self.layernorm_1, self.layernorm_2 = layers.LayerNormalization(), layers.LayerNormalization()
        self.layernorm_3 = layers.LayerNormalization()

    def call(self, inputs):
        inputs, encoder_outputs = inputs
        out_1 = self.layernorm_1(inputs + self.attention_1(inputs, inputs, use_causal_mask=True))
        out_2 = self.layernorm_2(out_1 + self.attention_2(out_1, encoder_outputs))
        return self.layernorm_3(out_2 + self.dense_proj(out_2))


encoder_inputs = keras.Input(shape=(None,), dtype="int64", name="encoder_inputs")
encoder_outputs = TransformerEncoder(dim, 32, 2)(PositionalEmbedding(length, vocab, dim)(encoder_inputs))
decoder_inputs = keras.Input(shape=(None,), dtype="int64", name="decoder_inputs")
x = PositionalEmbedding(length + 1, vocab, dim)(decoder_inputs)
x = TransformerDecoder(dim, 32, 2)([x, encoder_outputs])
decoder_outputs = layers.Dense(vocab, activation="softmax")(x)
transformer = keras.Model({"encoder_inputs": encoder_inputs, "decoder_inputs": decoder_inputs}, decoder_outputs)
transformer.compile("rmsprop", loss=keras.losses.SparseCategoricalCrossentropy(), metrics=["accuracy"])
transformer.fit(train_ds, epochs=4, validation_data=val_ds, verbose=2)


def decode_sequence(sentence):
    decoded = [1]
    for _ in range(length):
        predictions = transformer({"encoder_inputs": sentence, "decoder_inputs": ops.convert_to_tensor([decoded])})
        decoded.append(int(ops.argmax(predictions[0, len(decoded) - 1, :])))
    return decoded


print(len(decode_sequence(ops.convert_to_tensor(source[:1]))), "tokens decoded")
