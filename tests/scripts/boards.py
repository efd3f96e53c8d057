"""Trains with Keras's own TensorBoard callback, and with the run's figures beside it.

boards.py FOLDER
"""

from __future__ import annotations

import sys

import keras
import models

from shoal.callbacks import Monitor, TensorBoardScalars

keras.utils.set_random_seed(5)
model = models.compile_for_classes(models.dense(), "sgd")
x, y = models.images()
boards = [keras.callbacks.TensorBoard(sys.argv[1]), Monitor(TensorBoardScalars(sys.argv[1]))]
model.fit(x, y, batch_size=16, epochs=3, validation_data=(x, y), verbose=0, callbacks=boards)
