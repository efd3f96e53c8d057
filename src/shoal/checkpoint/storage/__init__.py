"""Where checkpoints are kept: in folders (local.py), or in an object store (objects.py). `choice.py` tells which."""
