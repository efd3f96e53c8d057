"""Runs a notebook's cells in a kernel, as its user would: `python -m corpus.cells NOTEBOOK [alone]`.

`alone`: what the notebook gives to `shoal.run` is called in the kernel instead, in plain Keras.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from notebooks import Notebook, cells_of

ALONE = """
import shoal
def run(function, n, args=(), **options):
    return function(**args) if isinstance(args, dict) else function(*args)
shoal.run = run
"""


def main(path: Path, *words: str) -> int:
    with Notebook(os.environ, Path.cwd()) as notebook:
        for cell in [*([ALONE] if "alone" in words else []), *cells_of(path)]:
            shown = notebook.try_(cell)
            print(shown.out, end="", flush=True)
            print(shown.err, end="", file=sys.stderr, flush=True)
            if shown.error is not None:
                print(shown.error, file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
