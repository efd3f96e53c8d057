"""The devices of a worker as a mesh: a model's layers as facts, Keras's own distribution, variables laid out."""
