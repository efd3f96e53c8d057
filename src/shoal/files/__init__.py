"""What a script does with files, where every worker of a run executes it: the chief acts, the others follow.

journal.py      what a worker has done with files, and how far its script is: written by each, read by the others
following.py    what becomes of an operation, given how far the chief is (pure)
trail.py        what the chief has done since the last call, as this worker sees it
private.py      the files that a worker which is not the chief has written: it alone sees them
elsewhere.py    folders whose names differ from the chief's in numbers only
held.py         what the chief has removed, for those who have not come so far
succession.py   what becomes of them when it becomes the chief
left_alone.py   which paths this is not about
files.py        one process's part: follows the chief or leads, waits, changes from one to the other
system.py       Python's functions on files as they are without Shoal
patches.py      what takes their place: opening.py, looking.py, changing.py, making.py
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from shoal.files.files import Chief, Files
from shoal.files.left_alone import LeftAlone
from shoal.files.private import PrivateFiles

__all__ = ["Chief", "Files", "start"]


def start(
    folder: Path, member: str, own: Iterable[str], environ: Mapping[str, str], on_private: Callable[[str], None]
) -> Files:
    """This member's part, in a run with this folder. `own`: other folders that the run writes to.

    `on_private` is told where private files lie, for whoever sees to it that nothing stays behind.
    """
    left = LeftAlone(environ, tempfile.gettempdir(), [str(folder), *own])

    def make() -> str:
        root = tempfile.mkdtemp(prefix=f"shoal-{folder.name}-{member}-")
        left.add(root)
        on_private(root)
        return root

    return Files(folder, member, left, PrivateFiles(make))
