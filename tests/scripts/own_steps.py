"""Steps of a script's own, with and without workers that die: `own_steps.py OUT [--few] [--kill RANK]`.

With --kill the worker of this rank kills itself in the middle of a step of `fit`, between two steps of a loop over
`shoal.batches`, and between two of `train_on_batch`; and whoever has that rank by then. With --few there is one scene
of each kind.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import keras
import on_batch
import own_loop
import several_applies

import shoal

_parser = argparse.ArgumentParser()
_parser.add_argument("out", type=Path)
_parser.add_argument("--few", action="store_true")
_parser.add_argument("--kill", type=int)
_told = _parser.parse_args()
OUT, FEW, VICTIM = _told.out, _told.few, _told.kill


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
    found = several_applies.scenes([DiesInAStep()], FEW)
    found |= own_loop.scenes(die, FEW)
    found |= on_batch.scenes(die, FEW)
    OUT.mkdir(exist_ok=True)
    (OUT / f"{shoal.rank()}.json").write_text(json.dumps({"scenes": found, "differing": differing}))


main()
