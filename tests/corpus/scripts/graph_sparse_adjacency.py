# backends: tensorflow
# agrees: rounding
import numpy as np
import scipy.sparse as sp
import tensorflow as tf
from tensorflow import keras

# A two-layer GCN with a sparse adjacency matrix that belongs to the layers; every epoch is one full batch.
keras.utils.set_random_seed(39)
rng = np.random.default_rng(39)
nodes = 96
group = np.arange(nodes) % 4
adjacency = sp.random(nodes, nodes, 0.02, random_state=1) + sp.csr_matrix(
    (group[:, None] == group[None]) & (rng.random((nodes, nodes)) < 0.3)
)
adjacency = sp.coo_matrix(((adjacency + adjacency.T + sp.eye(nodes)) > 0).astype("float32"))
degree = np.asarray(adjacency.sum(axis=1)).ravel()
normalized = sp.coo_matrix(sp.diags(degree**-0.5) @ adjacency @ sp.diags(degree**-0.5)).astype("float32")
sparse = tf.sparse.reorder(
    tf.SparseTensor(np.stack([normalized.row, normalized.col], 1).astype("int64"), normalized.data, normalized.shape)
)
features = tf.constant(rng.normal(size=(nodes, 8)).astype("float32") + np.eye(4, 8)[group].astype("float32"))


class GraphConvolution(keras.layers.Layer):
    def __init__(self, units, activation=None, **kwargs):
        super().__init__(**kwargs)
        self.units, self.activation = units, keras.activations.get(activation)

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], self.units), name="kernel")

    def call(self, x):
        return self.activation(tf.sparse.sparse_dense_matmul(sparse, tf.matmul(x, self.kernel)))


class GCN(keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.second = GraphConvolution(16, "relu"), GraphConvolution(4)

    def call(self, numbers):
        return tf.gather(self.second(self.first(features)), numbers)


model = GCN()
model.compile(
    keras.optimizers.Adam(0.05), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
)
numbers = np.arange(nodes)
history = model.fit(numbers, group, batch_size=nodes, epochs=10, shuffle=False, verbose=0)
print("loss", history.history["loss"])
print("accuracy", history.history["accuracy"][-1])
