# backends: jax tensorflow torch
# agrees: trend
"""Siamese network with a contrastive loss on pairs of digits."""

import random

import keras
import numpy as np
from keras import ops
from sklearn.datasets import load_digits

keras.utils.set_random_seed(1)
epochs, batch_size, margin = 5, 64, 1
x, y = load_digits(return_X_y=True)
x = x.astype("float32") / 16
x_train, y_train, x_test, y_test = x[:1200], y[:1200], x[1200:], y[1200:]


def make_pairs(x, y):
    digit_indices = [np.where(y == i)[0] for i in range(10)]
    pairs, labels = [], []
    for idx1 in range(len(x)):
        idx2 = random.choice(digit_indices[y[idx1]])
        pairs += [[x[idx1], x[idx2]]]
        labels += [0]
        label2 = random.randint(0, 9)
        while label2 == y[idx1]:
            label2 = random.randint(0, 9)
        pairs += [[x[idx1], x[random.choice(digit_indices[label2])]]]
        labels += [1]
    return np.array(pairs), np.array(labels).astype("float32")


pairs_train, labels_train = make_pairs(x_train, y_train)
pairs_test, labels_test = make_pairs(x_test, y_test)


def euclidean_distance(vects):
    x, y = vects
    sum_square = ops.sum(ops.square(x - y), axis=1, keepdims=True)
    return ops.sqrt(ops.maximum(sum_square, keras.backend.epsilon()))


def loss(margin=1):
    def contrastive_loss(y_true, y_pred):
        square_pred = ops.square(y_pred)
        margin_square = ops.square(ops.maximum(margin - y_pred, 0))
        return ops.mean((1 - y_true) * square_pred + y_true * margin_square)

    return contrastive_loss


input = keras.layers.Input((64,))
h = keras.layers.Dense(32, activation="tanh")(input)
h = keras.layers.Dense(8, activation="tanh")(h)
embedding_network = keras.Model(input, h)

input_1, input_2 = keras.layers.Input((64,)), keras.layers.Input((64,))
merge_layer = keras.layers.Lambda(euclidean_distance, output_shape=(1,))(
    [embedding_network(input_1), embedding_network(input_2)]
)
output_layer = keras.layers.Dense(1, activation="sigmoid")(merge_layer)
siamese = keras.Model(inputs=[input_1, input_2], outputs=output_layer)

siamese.compile(loss=loss(margin=margin), optimizer=keras.optimizers.RMSprop(0.005), metrics=["accuracy"])
history = siamese.fit(
    [pairs_train[:, 0], pairs_train[:, 1]], labels_train, batch_size=batch_size, epochs=epochs, verbose=2
)
results = siamese.evaluate([pairs_test[:, 0], pairs_test[:, 1]], labels_test, verbose=0)
print("test loss, test acc:", results)
