# backends: tensorflow
# agrees: trend
import keras
import numpy as np
import tensorflow as tf

# TextVectorization is the first layer: fit and predict take arrays of strings.
keras.utils.set_random_seed(7)
rng = np.random.default_rng(7)
topics = {
    0: ["goal", "match", "team", "referee", "league"],
    1: ["stock", "market", "shares", "bank", "profit"],
    2: ["planet", "rocket", "orbit", "moon", "telescope"],
}
common = ["today", "yesterday", "the", "a", "of", "people", "said", "new"]


def headline(label):
    words = list(rng.choice(topics[label], 2)) + list(rng.choice(common, 4))
    rng.shuffle(words)
    return " ".join(words)


labels = rng.integers(0, 3, 360)
headlines = np.array([headline(label) for label in labels], dtype=object)

vectorizer = keras.layers.TextVectorization(max_tokens=60, output_mode="tf_idf")
vectorizer.adapt(headlines)
print("vocabulary of", vectorizer.vocabulary_size())

model = keras.Sequential(
    [
        keras.Input(shape=(1,), dtype=tf.string),
        vectorizer,
        keras.layers.Dense(24, activation="relu"),
        keras.layers.Dense(3, activation="softmax"),
    ]
)
model.compile("rmsprop", "sparse_categorical_crossentropy", metrics=["accuracy"])
train_x = tf.convert_to_tensor(headlines.astype(str))[:, tf.newaxis]
model.fit(train_x, labels, epochs=6, batch_size=40, verbose=2)
asked = tf.constant([["the referee of the match"], ["new profit of the bank"], ["rocket to the moon"]])
print(np.argmax(model.predict(asked, verbose=0), axis=-1))
