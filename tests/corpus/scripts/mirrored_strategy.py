# backends: tensorflow
# agrees: refused: the model was made in the scope of a tf.distribute
import tensorflow as tf
import keras
import numpy as np

# As scripts for one machine with several GPUs begin: a MirroredStrategy, which finds one device here.
keras.utils.set_random_seed(51)
strategy = tf.distribute.MirroredStrategy(devices=["/cpu:0"])
print(f"Number of devices: {strategy.num_replicas_in_sync}")
rng = np.random.default_rng(51)
x = rng.normal(size=(512, 16)).astype("float32")
y = (x[:, :8].sum(axis=1) > 0).astype("int32")
batch_size = 32 * strategy.num_replicas_in_sync
train = tf.data.Dataset.from_tensor_slices((x[:384], y[:384])).batch(batch_size)
val = tf.data.Dataset.from_tensor_slices((x[384:], y[384:])).batch(batch_size)

with strategy.scope():
    model = keras.Sequential(
        [keras.layers.Input((16,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(2)]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy()],
    )
model.fit(train, epochs=3, validation_data=val, verbose=2)
print(model.evaluate(val, verbose=0))
