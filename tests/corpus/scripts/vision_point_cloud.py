# backends: tensorflow
# agrees: trend
import numpy as np
import tensorflow as tf
from keras import layers, ops
import keras

# PointNet: a transformation network with an orthogonal regularizer, points jittered in the pipeline.
keras.utils.set_random_seed(32)
tf.random.set_seed(32)
rng = np.random.default_rng(32)
NUM_POINTS, NUM_CLASSES = 32, 3


def clouds(count):
    labels = rng.integers(0, NUM_CLASSES, count)
    points = rng.normal(size=(count, NUM_POINTS, 3))
    ball = points / np.linalg.norm(points, axis=-1, keepdims=True)
    box, disc = rng.uniform(-1, 1, (count, NUM_POINTS, 3)), points * (1, 1, 0.05)
    return np.stack([ball, box, disc])[labels, np.arange(count)].astype("float32"), labels


def augment(points, label):
    points += tf.random.uniform(tf.shape(points), -0.005, 0.005)
    return tf.random.shuffle(points), label


train, test = clouds(256), clouds(64)
train_dataset = tf.data.Dataset.from_tensor_slices(train).shuffle(256).map(augment).batch(32)
test_dataset = tf.data.Dataset.from_tensor_slices(test).batch(32)


def conv_bn(x, filters):
    x = layers.Conv1D(filters, kernel_size=1, padding="valid")(x)
    return layers.Activation("relu")(layers.BatchNormalization(momentum=0.5)(x))


class OrthogonalRegularizer(keras.regularizers.Regularizer):
    def __init__(self, num_features, l2reg=0.001):
        self.num_features, self.l2reg = num_features, l2reg
        self.eye = ops.eye(num_features)

    def __call__(self, x):
        x = ops.reshape(x, (-1, self.num_features, self.num_features))
        xxt = ops.matmul(x, ops.transpose(x, (0, 2, 1)))
        return self.l2reg * ops.mean(ops.square(xxt - self.eye))


def tnet(inputs, num_features):
    bias = keras.initializers.Constant(np.eye(num_features).flatten())
    x = layers.GlobalMaxPooling1D()(conv_bn(inputs, 16))
    x = layers.Dense(
        num_features * num_features,
        kernel_initializer="zeros",
        bias_initializer=bias,
        activity_regularizer=OrthogonalRegularizer(num_features),
    )(x)
    return layers.Dot(axes=(2, 1))([inputs, layers.Reshape((num_features, num_features))(x)])


inputs = keras.Input(shape=(NUM_POINTS, 3))
x = tnet(inputs, 3)
x = conv_bn(conv_bn(x, 16), 32)
x = layers.GlobalMaxPooling1D()(x)
outputs = layers.Dense(NUM_CLASSES, activation="softmax")(x)
model = keras.Model(inputs=inputs, outputs=outputs, name="pointnet")
model.compile(
    loss="sparse_categorical_crossentropy",
    optimizer=keras.optimizers.Adam(learning_rate=0.01),
    metrics=["sparse_categorical_accuracy"],
)
model.fit(train_dataset, epochs=5, validation_data=test_dataset, verbose=0)
print("training accuracy", model.evaluate(tf.data.Dataset.from_tensor_slices(train).batch(32), verbose=0)[1])
