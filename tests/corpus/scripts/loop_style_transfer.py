# backends: tensorflow
# agrees: refused: outside of fit() would train each worker's copy of the model by itself
import tensorflow as tf
import keras
import numpy as np

# Style transfer: the picture is the variable that the optimizer changes, the network stays as it is.
keras.utils.set_random_seed(53)
rng = np.random.default_rng(53)
content, style = (rng.uniform(0, 1, (1, 16, 16, 3)).astype("float32") for _ in range(2))
features = keras.Sequential(
    [
        keras.layers.Input((16, 16, 3)),
        keras.layers.Conv2D(8, 3, activation="relu"),
        keras.layers.Conv2D(8, 3, activation="relu"),
    ]
)


def gram_matrix(x):
    x = tf.reshape(x, (-1, tf.shape(x)[-1]))
    return tf.matmul(x, x, transpose_a=True) / tf.cast(tf.shape(x)[0], tf.float32)


def compute_loss(combination):
    content_loss = tf.reduce_mean(tf.square(features(combination) - features(content)))
    style_loss = tf.reduce_mean(tf.square(gram_matrix(features(combination)) - gram_matrix(features(style))))
    return content_loss + 10.0 * style_loss


@tf.function
def compute_loss_and_grads(combination):
    with tf.GradientTape() as tape:
        loss = compute_loss(combination)
    return loss, tape.gradient(loss, combination)


optimizer = keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.5, decay_steps=10, decay_rate=0.96))
combination_image = keras.Variable(content)
for i in range(1, 21):
    loss, grads = compute_loss_and_grads(combination_image.value)
    optimizer.apply_gradients([(grads, combination_image)])
    if i % 10 == 0:
        print("Iteration %d: loss=%.4f" % (i, loss))
        np.save("combination_at_iteration_%d.npy" % i, combination_image.numpy())
