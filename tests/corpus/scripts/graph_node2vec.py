# backends: tensorflow jax
# agrees: rounding
"""node2vec: random walks, skip-grams with negative samples, a two-input embedding model."""

import math
import random

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(59)
random.seed(59)
graph = {node: [(node + shift) % 40 for shift in (1, 2, 39, 38)] for node in range(40)}


def random_walk(graph, num_walks, num_steps):
    walks = []
    for _ in range(num_walks):
        nodes = list(graph)
        random.shuffle(nodes)
        for node in nodes:
            walk = [node]
            while len(walk) < num_steps:
                walk.append(random.choice(graph[walk[-1]]))
            walks.append(walk)
    return walks


walks = random_walk(graph, num_walks=3, num_steps=6)
print("Number of walks generated:", len(walks))
targets, contexts, labels = [], [], []
for walk in walks:
    for place, target in enumerate(walk):
        for context in walk[max(0, place - 2) : place + 3]:
            if context != target:
                targets += [target, target]
                contexts += [context, random.randrange(40)]
                labels += [1, 0]
targets, contexts, labels = np.array(targets), np.array(contexts), np.array(labels, "float32")
keep = len(targets) // 64 * 64
print("examples", keep > 1000)


def create_model(vocabulary_size, embedding_dim):
    inputs = {name: layers.Input(name=name, shape=(), dtype="int32") for name in ("target", "context")}
    embed_item = layers.Embedding(
        vocabulary_size, embedding_dim, embeddings_initializer="he_normal", name="item_embeddings"
    )
    logits = layers.Dot(axes=1, normalize=False, name="dot_similarity")(
        [embed_item(inputs["target"]), embed_item(inputs["context"])]
    )
    return keras.Model(inputs=inputs, outputs=logits)


model = create_model(40, 8)
model.compile(optimizer=keras.optimizers.SGD(0.5), loss=keras.losses.BinaryCrossentropy(from_logits=True))
history = model.fit(
    {"target": targets[:keep], "context": contexts[:keep]},
    labels[:keep],
    batch_size=64,
    epochs=3,
    shuffle=False,
    verbose=2,
)
item_embeddings = model.get_layer("item_embeddings").get_weights()[0]
print("Embeddings shape:", item_embeddings.shape)
with open("embeddings.tsv", "w") as file:
    for vector in item_embeddings:
        file.write("\t".join(f"{value:.3f}" for value in vector) + "\n")
