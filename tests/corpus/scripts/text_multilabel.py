# backends: tensorflow
# agrees: trend
import pandas as pd
import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers

# Several labels per paper: ragged terms, a multi-hot StringLookup, a shallow MLP.
keras.utils.set_random_seed(5)
np.random.seed(5)
subjects = {
    "cs.CV": ["image", "pixel", "vision"],
    "cs.LG": ["gradient", "network", "loss"],
    "stat.ML": ["bayes", "prior", "variance"],
}
rows = []
for _ in range(400):
    chosen = list(np.random.choice(list(subjects), np.random.randint(1, 3), replace=False))
    words = [w for s in chosen for w in np.random.choice(subjects[s], 3)] + list(
        np.random.choice(["we", "show", "a", "method"], 4)
    )
    np.random.shuffle(words)
    rows.append({"summaries": " ".join(words), "terms": chosen})
frame = pd.DataFrame(rows)
print(f"There are {len(frame)} rows in the dataset.")
train, test = frame[:320], frame[320:]

terms = tf.ragged.constant(train["terms"].tolist())
lookup = layers.StringLookup(output_mode="multi_hot")
lookup.adapt(terms.flat_values)
vocab = sorted(lookup.get_vocabulary())
print("Vocabulary:", vocab)


def make_dataset(dataframe, is_train=True):
    labels = tf.ragged.constant(dataframe["terms"].tolist())
    label_binarized = lookup(labels.to_tensor(default_value="[UNK]")).numpy()
    label_binarized[:, 0] = 0
    dataset = tf.data.Dataset.from_tensor_slices((dataframe["summaries"].tolist(), label_binarized))
    dataset = dataset.shuffle(320) if is_train else dataset
    return dataset.batch(32)


text_vectorizer = layers.TextVectorization(max_tokens=40, ngrams=2, output_mode="multi_hot")
text_vectorizer.adapt(train["summaries"].tolist())
train_dataset = make_dataset(train).map(lambda text, label: (text_vectorizer(text), label)).prefetch(tf.data.AUTOTUNE)
test_dataset = make_dataset(test, is_train=False).map(lambda text, label: (text_vectorizer(text), label))

shallow_mlp_model = keras.Sequential(
    [
        layers.Dense(32, activation="relu"),
        layers.Dense(16, activation="relu"),
        layers.Dense(lookup.vocabulary_size(), activation="sigmoid"),
    ]
)
shallow_mlp_model.compile(
    loss="binary_crossentropy", optimizer=keras.optimizers.Adam(0.005), metrics=["binary_accuracy"]
)
history = shallow_mlp_model.fit(train_dataset, validation_data=test_dataset, epochs=4, verbose=2)
_, binary_acc = shallow_mlp_model.evaluate(test_dataset, verbose=0)
print(f"Categorical accuracy on the test set: {round(binary_acc * 100, 2)}%.")

model_for_inference = keras.Sequential([text_vectorizer, shallow_mlp_model])
predicted = model_for_inference.predict(tf.constant(test["summaries"].tolist()[:4]), verbose=0)
print(predicted.shape)
