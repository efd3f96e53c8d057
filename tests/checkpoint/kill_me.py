"""Writes checkpoint after checkpoint until it is killed: `kill_me.py FOLDER FIRST_STEP`. Tells each one it finished."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.checkpoint.scene import write

step = int(sys.argv[2])
while True:
    write(Path(sys.argv[1]), step, members=3, run=f"r{step}", training="r0", keep=2, size=20_000)
    print(step, flush=True)
    step += 1
