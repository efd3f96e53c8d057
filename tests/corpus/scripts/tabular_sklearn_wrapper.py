# backends: tensorflow jax
# agrees: trend
import keras
import numpy as np
from keras.wrappers import SKLearnClassifier
from sklearn.datasets import load_iris
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

# Keras's wrapper for scikit-learn: a pipeline, cross-validated.
keras.utils.set_random_seed(40)


def dynamic_model(X, y, loss, layers=(12,)):
    inp = keras.layers.Input(shape=(X.shape[1],))
    hidden = inp
    for units in layers:
        hidden = keras.layers.Dense(units, activation="relu")(hidden)
    n_outputs = y.shape[1] if len(y.shape) > 1 else 1
    out = keras.layers.Dense(n_outputs, activation="softmax")(hidden)
    model = keras.Model(inp, out)
    model.compile(loss=loss, optimizer=keras.optimizers.Adam(0.03))
    return model


X, y = load_iris(return_X_y=True)
order = np.random.permutation(len(X))
X, y = X[order], y[order]
est = SKLearnClassifier(
    model=dynamic_model,
    model_kwargs={"loss": "categorical_crossentropy", "layers": [20]},
    fit_kwargs={"epochs": 10, "verbose": 0},
)
pipeline = make_pipeline(StandardScaler(), est)
scores = cross_val_score(pipeline, X, y, cv=3)
print("mean accuracy", scores.mean())
pipeline.fit(X, y)
print("training accuracy", pipeline.score(X, y))
