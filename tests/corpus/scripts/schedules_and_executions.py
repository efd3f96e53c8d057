# backends: jax tensorflow
# agrees: rounding
import keras
import numpy as np
from keras.optimizers import schedules

# Learning rate schedules, several steps per execution, EMA of weights, gradient accumulation, clipping.
keras.utils.set_random_seed(91)
rng = np.random.default_rng(91)
x = rng.normal(size=(512, 8)).astype("float32")
y = (x @ rng.normal(size=(8, 2))).astype("float32")


@keras.saving.register_keras_serializable()
class WarmUp(schedules.LearningRateSchedule):
    def __init__(self, peak, steps):
        self.peak, self.steps = peak, steps

    def __call__(self, step):
        step = keras.ops.cast(step, "float32")
        return self.peak * keras.ops.minimum(1.0, (step + 1) / self.steps)

    def get_config(self):
        return {"peak": self.peak, "steps": self.steps}


optimizers = {
    "cosine": keras.optimizers.SGD(schedules.CosineDecay(0.05, 60), momentum=0.9, global_clipnorm=1.0),
    "warm-up": keras.optimizers.Adam(WarmUp(0.02, 20), use_ema=True, ema_momentum=0.9),
    "accumulated": keras.optimizers.AdamW(0.01, weight_decay=0.01, gradient_accumulation_steps=4),
    "piecewise": keras.optimizers.Nadam(schedules.PiecewiseConstantDecay([16, 32], [0.02, 0.01, 0.005])),
}
for name, optimizer in optimizers.items():
    keras.utils.set_random_seed(91)
    model = keras.Sequential(
        [keras.layers.Input((8,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(2)]
    )
    model.compile(optimizer, "mse", steps_per_execution=4)
    history = model.fit(x, y, batch_size=32, epochs=3, shuffle=False, verbose=0)
    print(name, history.history["loss"], "iterations", int(optimizer.iterations))
