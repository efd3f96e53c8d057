# backends: jax tensorflow torch
# agrees: rounding
"""Callbacks of one's own: logs of every kind, early stopping that restores weights, a schedule of learning rates."""

import keras
import numpy as np

keras.utils.set_random_seed(1)
rng = np.random.default_rng(1)
x = rng.normal(size=(480, 12)).astype("float32")
y = (x[:, :1] ** 2).astype("float32")


def get_model():
    model = keras.Sequential(
        [keras.layers.Input((12,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)]
    )
    model.compile(
        optimizer=keras.optimizers.RMSprop(learning_rate=0.01),
        loss="mean_squared_error",
        metrics=["mean_absolute_error"],
    )
    return model


class CustomCallback(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        print(f"Starting training; got log keys: {list((logs or {}).keys())}")

    def on_epoch_end(self, epoch, logs=None):
        print(f"End epoch {epoch} of training; got log keys: {list(logs.keys())}")

    def on_train_batch_end(self, batch, logs=None):
        if batch % 4 == 0:
            print(f"...Training: end of batch {batch}; loss {logs['loss']:.4f}")

    def on_test_end(self, logs=None):
        print(f"Stop testing; got log keys: {list(logs.keys())}")

    def on_predict_end(self, logs=None):
        print("Stop predicting")


class EarlyStoppingAtMinLoss(keras.callbacks.Callback):
    def __init__(self, patience=0):
        super().__init__()
        self.patience = patience
        self.best_weights = None

    def on_train_begin(self, logs=None):
        self.wait, self.stopped_epoch, self.best = 0, 0, np.inf

    def on_epoch_end(self, epoch, logs=None):
        current = logs.get("loss")
        if np.less(current, self.best):
            self.best, self.wait = current, 0
            self.best_weights = self.model.get_weights()
        else:
            self.wait += 1
            if self.wait >= self.patience:
                self.stopped_epoch = epoch
                self.model.stop_training = True
                self.model.set_weights(self.best_weights)

    def on_train_end(self, logs=None):
        print(f"Epoch {self.stopped_epoch + 1}: early stopping; best {self.best:.4f}")


class CustomLearningRateScheduler(keras.callbacks.Callback):
    def __init__(self, schedule):
        super().__init__()
        self.schedule = schedule

    def on_epoch_begin(self, epoch, logs=None):
        lr = self.model.optimizer.learning_rate
        scheduled_lr = self.schedule(epoch, float(keras.ops.convert_to_numpy(lr)))
        self.model.optimizer.learning_rate = scheduled_lr
        print(f"Epoch {epoch}: Learning rate is {scheduled_lr:.5f}.")


model = get_model()
model.fit(x, y, batch_size=48, epochs=1, verbose=0, shuffle=False, validation_split=0.5, callbacks=[CustomCallback()])
model.evaluate(x, y, batch_size=48, verbose=0, callbacks=[CustomCallback()])
model.predict(x, batch_size=48, verbose=0, callbacks=[CustomCallback()])
model = get_model()
model.fit(x, y, batch_size=48, epochs=5, verbose=0, shuffle=False, callbacks=[EarlyStoppingAtMinLoss()])
model = get_model()
schedule = {2: 0.005, 4: 0.002}
model.fit(
    x,
    y,
    batch_size=48,
    epochs=5,
    verbose=0,
    shuffle=False,
    callbacks=[CustomLearningRateScheduler(lambda e, lr: schedule.get(e, lr))],
)
print("mae", model.evaluate(x, y, verbose=0)[1])
