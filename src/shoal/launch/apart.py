"""The launcher in a process of its own, for `shoal.run`: its signals, children and output are not the caller's.

python -m shoal.launch.apart FOLDER CALLER'S_PID       request.json and, at the end, ended.json are in the folder
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import msgspec

from shoal.errors import UsageError
from shoal.launch.local import start
from shoal.launch.parents import end_with
from shoal.launch.request import LaunchRequest

REQUEST, ENDED, REFUSED = "request.json", "ended.json", "refused"


def main() -> None:
    folder, caller = Path(sys.argv[1]), int(sys.argv[2])
    end_with(caller)
    request = msgspec.json.decode((folder / REQUEST).read_bytes(), type=LaunchRequest)
    try:
        ended = start(request, os.environ, tuple(sorted(os.sched_getaffinity(0))))
        (folder / ENDED).write_bytes(msgspec.json.encode(ended))
        if ended.ok and ended.said:
            print(ended.said, file=sys.stderr)
    except UsageError as error:
        (folder / REFUSED).write_text(str(error), encoding="utf-8")
    finally:
        if os.getppid() != caller:
            shutil.rmtree(folder, ignore_errors=True)  # nobody is left who would


if __name__ == "__main__":
    main()
