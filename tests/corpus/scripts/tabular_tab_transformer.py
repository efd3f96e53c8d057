# backends: jax
# agrees: trend
"""TabTransformer: contextual embeddings of categorical columns next to numeric ones, sample weights from the data."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(70)
rng = np.random.default_rng(70)

CARDINALITIES = {"workclass": 5, "education": 8, "occupation": 6}
NUMERIC = ["age", "hours_per_week"]
EMBEDDING_DIMS, NUM_HEADS, LEARNING_RATE, BATCH_SIZE, NUM_EPOCHS = 8, 2, 0.01, 64, 6


def make_table(count):
    columns = {name: rng.integers(0, size, count) for name, size in CARDINALITIES.items()}
    columns |= {name: rng.normal(size=count).astype("float32") for name in NUMERIC}
    score = columns["age"] + 0.5 * (columns["education"] > 4) - 0.5 * (columns["occupation"] == 2)
    return columns, (score > 0).astype("float32"), rng.uniform(0.5, 1.5, count).astype("float32")


def build_classifier():
    inputs = {name: keras.Input((1,), dtype="int32", name=name) for name in CARDINALITIES}
    inputs |= {name: keras.Input((1,), name=name) for name in NUMERIC}
    embedded = [layers.Embedding(size, EMBEDDING_DIMS)(inputs[name]) for name, size in CARDINALITIES.items()]
    encoded = layers.Concatenate(axis=1)(embedded)
    positions = layers.Embedding(len(CARDINALITIES), EMBEDDING_DIMS)(keras.ops.arange(len(CARDINALITIES)))
    encoded = encoded + positions
    attention = layers.MultiHeadAttention(NUM_HEADS, EMBEDDING_DIMS, dropout=0.1, name="attention_0")(encoded, encoded)
    x = layers.LayerNormalization(epsilon=1e-6)(layers.Add()([attention, encoded]))
    feed = layers.Dense(EMBEDDING_DIMS, activation="gelu")(x)
    x = layers.LayerNormalization(epsilon=1e-6)(layers.Add()([feed, x]))
    numeric = layers.LayerNormalization(epsilon=1e-6)(layers.Concatenate()([inputs[name] for name in NUMERIC]))
    features = layers.concatenate([layers.Flatten()(x), numeric, *[inputs[name] for name in NUMERIC]])
    features = layers.Dense(16, activation="selu")(features)
    return keras.Model(inputs, layers.Dense(1, activation="sigmoid")(layers.Dropout(0.1)(features)))


def main():
    x, y, weights = make_table(768)
    test_x, test_y, test_weights = make_table(256)
    model = build_classifier()
    model.compile(
        optimizer=keras.optimizers.AdamW(learning_rate=LEARNING_RATE, weight_decay=1e-4),
        loss=keras.losses.BinaryCrossentropy(),
        metrics=[keras.metrics.BinaryAccuracy(name="accuracy")],
        weighted_metrics=[keras.metrics.AUC(name="auc")],
    )
    model.fit(
        x,
        y,
        sample_weight=weights,
        batch_size=BATCH_SIZE,
        epochs=NUM_EPOCHS,
        validation_data=(test_x, test_y, test_weights),
        verbose=2,
    )
    results = model.evaluate(test_x, test_y, sample_weight=test_weights, verbose=0, return_dict=True)
    print(f"Validation accuracy: {round(results['accuracy'] * 100, 2)}% auc: {results['auc']:.3f}")


main()
