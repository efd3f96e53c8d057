# backends: jax tensorflow
# agrees: rounding
import keras
import numpy as np

# float64 everywhere, and half precision as a policy of one layer.
keras.config.set_floatx("float64")
keras.config.set_epsilon(1e-7)
keras.utils.set_random_seed(56)
if keras.backend.backend() == "jax":
    import jax

    jax.config.update("jax_enable_x64", True)

rng = np.random.default_rng(56)
x = rng.normal(size=(192, 6, 6, 2))
y = x.mean(axis=(1, 2, 3), keepdims=False)
model = keras.Sequential(
    [
        keras.layers.Input((6, 6, 2)),
        keras.layers.Conv2D(4, 3, data_format="channels_last", padding="same"),
        keras.layers.ZeroPadding2D(1),
        keras.layers.Conv2D(4, 3, strides=2),
        keras.layers.Flatten(),
        keras.layers.Dense(4, dtype="float32"),
        keras.layers.Dense(1),
    ]
)
print("dtype", model.dtype, model.layers[0].dtype)
model.compile(keras.optimizers.Adam(0.01), "mse")
history = model.fit(x, y, batch_size=32, epochs=3, shuffle=False, verbose=0)
print("loss", history.history["loss"])
