# backends: jax tensorflow torch
# agrees: rounding
"""Tickets: a title, a body and tags in; a priority and a coordinator service out. Inputs by name, losses by name."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(13)
num_tags, num_words, num_departments = 6, 50, 3
title_input = keras.Input(shape=(None,), name="title")
body_input = keras.Input(shape=(None,), name="body")
tags_input = keras.Input(shape=(num_tags,), name="tags")
title_features = layers.LSTM(8)(layers.Embedding(num_words, 8)(title_input))
body_features = layers.GlobalAveragePooling1D()(layers.Embedding(num_words, 8)(body_input))
x = layers.concatenate([title_features, body_features, tags_input])
priority_pred = layers.Dense(1, name="priority")(x)
coordinator_service_pred = layers.Dense(num_departments, name="department")(x)
model = keras.Model(
    inputs=[title_input, body_input, tags_input],
    outputs={"priority": priority_pred, "department": coordinator_service_pred},
)
model.compile(
    optimizer=keras.optimizers.SGD(0.1),
    loss={
        "priority": keras.losses.BinaryCrossentropy(from_logits=True),
        "department": keras.losses.CategoricalCrossentropy(from_logits=True),
    },
    loss_weights={"priority": 1.0, "department": 0.2},
    metrics={"priority": ["binary_accuracy"], "department": ["accuracy"]},
)
rng = np.random.default_rng(13)
title_data = rng.integers(num_words, size=(320, 5))
body_data = rng.integers(num_words, size=(320, 12))
tags_data = rng.integers(2, size=(320, num_tags)).astype("float32")
priority_targets = tags_data[:, :1]
dept_targets = np.eye(num_departments)[title_data[:, 0] % num_departments].astype("float32")
model.fit(
    {"title": title_data, "body": body_data, "tags": tags_data},
    {"priority": priority_targets, "department": dept_targets},
    epochs=3,
    batch_size=32,
    shuffle=False,
    verbose=2,
)
scores = model.evaluate(
    {"title": title_data, "body": body_data, "tags": tags_data},
    {"priority": priority_targets, "department": dept_targets},
    verbose=0,
    return_dict=True,
)
print(dict(sorted(scores.items())))
