# backends: torch tensorflow
# agrees: trend
"""K-fold cross-validation: a model anew for each fold, scores collected."""

import numpy as np
import keras
from sklearn.datasets import load_wine
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler

keras.utils.set_random_seed(4)
X, y = load_wine(return_X_y=True)


def build_model(input_dim):
    model = keras.Sequential(name="wine")
    model.add(keras.layers.Input((input_dim,)))
    model.add(keras.layers.Dense(16, activation="tanh"))
    model.add(keras.layers.Dense(3, activation="softmax"))
    model.compile(
        optimizer=keras.optimizers.SGD(0.1, momentum=0.9), loss="sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return model


scores, histories = [], []
for fold, (train, test) in enumerate(StratifiedKFold(n_splits=4, shuffle=True, random_state=1).split(X, y)):
    keras.backend.clear_session()
    scaler = StandardScaler().fit(X[train])
    model = build_model(X.shape[1])
    history = model.fit(
        scaler.transform(X[train]),
        y[train],
        validation_data=(scaler.transform(X[test]), y[test]),
        epochs=10,
        batch_size=16,
        verbose=0,
    )
    loss, accuracy = model.evaluate(scaler.transform(X[test]), y[test], verbose=0)
    print(f"Score for fold {fold}: {model.metrics_names[0]} of {loss:.4f}; accuracy of {accuracy * 100:.2f}%")
    scores.append(accuracy)
    histories.append(history.history["val_loss"])
average = [np.mean([h[i] for h in histories]) for i in range(10)]
print("mean accuracy", np.mean(scores))
print("best epoch's validation loss", min(average))
