# backends: jax tensorflow
# agrees: trend
"""Boxes and classes from one backbone: two heads, two losses, loss weights, metrics by name."""

from keras import Input, Model, layers, losses, metrics, optimizers, utils
import numpy as np

utils.set_random_seed(9)
rng = np.random.default_rng(9)

SIZE, SAMPLES = 24, 480
KINDS = ["square", "bar", "cross"]


def make(count):
    images = rng.normal(0, 0.05, (count, SIZE, SIZE, 1)).astype("float32")
    boxes = np.zeros((count, 4), "float32")
    kinds = rng.integers(0, len(KINDS), count)
    for image, box, kind in zip(images, boxes, kinds):
        width, height = rng.integers(5, 11, 2)
        left, top = rng.integers(0, SIZE - width), rng.integers(0, SIZE - height)
        if kind == 0:
            image[top : top + height, left : left + width] += 1
        elif kind == 1:
            image[top : top + height, left : left + 2] += 1
            width = 2
        else:
            image[top + height // 2, left : left + width] += 1
            image[top : top + height, left + width // 2] += 1
        box[:] = np.array([left, top, left + width, top + height]) / SIZE
    return images, boxes, kinds


images, boxes, kinds = make(SAMPLES)

inputs = Input((SIZE, SIZE, 1), name="image")
x = inputs
for filters in (8, 16, 24):
    x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
    x = layers.MaxPooling2D()(x)
x = layers.Flatten()(x)
x = layers.Dense(48, activation="relu")(x)
box_head = layers.Dense(4, activation="sigmoid", name="box")(x)
class_head = layers.Dense(len(KINDS), activation="softmax", name="kind")(x)
model = Model(inputs, {"box": box_head, "kind": class_head})

model.compile(
    optimizer=optimizers.Adam(3e-3),
    loss={"box": losses.Huber(delta=0.1), "kind": losses.SparseCategoricalCrossentropy()},
    loss_weights={"box": 20.0, "kind": 1.0},
    metrics={"box": [metrics.MeanAbsoluteError(name="mae")], "kind": ["accuracy"]},
)
model.fit(
    {"image": images},
    {"box": boxes, "kind": kinds},
    batch_size=32,
    epochs=5,
    validation_split=0.2,
    verbose=2,
)


def iou(a, b):
    left, top = np.maximum(a[:, 0], b[:, 0]), np.maximum(a[:, 1], b[:, 1])
    right, bottom = np.minimum(a[:, 2], b[:, 2]), np.minimum(a[:, 3], b[:, 3])
    common = np.clip(right - left, 0, None) * np.clip(bottom - top, 0, None)
    areas = [(box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1]) for box in (a, b)]
    return common / np.maximum(areas[0] + areas[1] - common, 1e-6)


test_images, test_boxes, test_kinds = make(64)
predictions = model.predict(test_images, verbose=0)
print("mean IoU", float(np.mean(iou(test_boxes, predictions["box"]))))
print("accuracy", float(np.mean(np.argmax(predictions["kind"], axis=-1) == test_kinds)))
