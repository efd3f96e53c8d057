# backends: tensorflow
# agrees: trend
import tensorflow as tf
from keras import Model, layers, metrics, optimizers, utils
import numpy as np

# Triplets: the distances are computed by a layer; train_step and test_step are the model's own.
utils.set_random_seed(31)
rng = np.random.default_rng(31)
centers = rng.normal(0, 2, (5, 10))
kinds = rng.integers(0, 5, 320)


def like(kinds):
    return (centers[kinds] + rng.normal(0, 1, (len(kinds), 10))).astype("float32")


anchors, positives, negatives = like(kinds), like(kinds), like((kinds + rng.integers(1, 5, 320)) % 5)
dataset = tf.data.Dataset.zip(
    tuple(tf.data.Dataset.from_tensor_slices(part) for part in (anchors, positives, negatives))
)
train_dataset, val_dataset = dataset.take(256).batch(32).prefetch(8), dataset.skip(256).batch(32).prefetch(8)

embedding_input = layers.Input((10,))
h = layers.Dense(16, activation="relu")(embedding_input)
embedding = Model(embedding_input, layers.Dense(4)(h), name="Embedding")


class DistanceLayer(layers.Layer):
    def call(self, anchor, positive, negative):
        ap_distance = tf.reduce_sum(tf.square(anchor - positive), -1)
        an_distance = tf.reduce_sum(tf.square(anchor - negative), -1)
        return (ap_distance, an_distance)


inputs = [layers.Input(name=name, shape=(10,)) for name in ("anchor", "positive", "negative")]
distances = DistanceLayer()(*[embedding(part) for part in inputs])
siamese_network = Model(inputs=inputs, outputs=distances)


class SiameseModel(Model):
    def __init__(self, siamese_network, margin=0.5):
        super().__init__()
        self.siamese_network = siamese_network
        self.margin = margin
        self.loss_tracker = metrics.Mean(name="loss")

    def call(self, inputs):
        return self.siamese_network(inputs)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self._compute_loss(data)
        gradients = tape.gradient(loss, self.siamese_network.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.siamese_network.trainable_weights))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    def test_step(self, data):
        loss = self._compute_loss(data)
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    def _compute_loss(self, data):
        ap_distance, an_distance = self.siamese_network(data)
        return tf.maximum(ap_distance - an_distance + self.margin, 0.0)

    @property
    def metrics(self):
        return [self.loss_tracker]


siamese_model = SiameseModel(siamese_network)
siamese_model.compile(optimizer=optimizers.Adam(0.001), weighted_metrics=[])
siamese_model.fit(train_dataset, epochs=4, validation_data=val_dataset, verbose=2)
cosine_similarity = metrics.CosineSimilarity()
positive_similarity = cosine_similarity(embedding(anchors[:32]), embedding(positives[:32]))
print("Positive similarity:", positive_similarity.numpy())
