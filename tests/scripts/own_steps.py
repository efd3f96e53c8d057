"""Steps of a script's own, with and without workers that die: `own_steps.py OUT [KILL]`.

KILL: the worker of this rank kills itself in the middle of a step of `fit`, between two steps of a loop over
`shoal.batches`, and between two of `train_on_batch`; and whoever has that rank by then.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import keras
import on_batch
import own_loop
import several_applies

import shoal

OUT = Path(sys.argv[1])
VICTIM = int(sys.argv[2]) if len(sys.argv) > 2 else None


def die() -> None:
    if shoal.rank() == VICTIM and shoal.size() > 1:
        os.kill(os.getpid(), signal.SIGKILL)


class DiesInAStep(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch == 2 and VICTIM is not None and shoal.rank() == VICTIM and shoal.size() > 1:
            threading.Timer(0.005, die).start()


def main() -> None:
    # Before the script asks for its rank; and not where others are to join later: nobody can join such a loop.
    differing = on_batch.differing() if VICTIM is None else []
    found = several_applies.scenes([DiesInAStep()])
    found |= own_loop.scenes(die)
    found |= on_batch.scenes(die)
    OUT.mkdir(exist_ok=True)
    (OUT / f"{shoal.rank()}.json").write_text(json.dumps({"scenes": found, "differing": differing}))


main()
