"""The page's process, beside a run that goes on.

python -m shoal.dashboard.process RUN_FOLDER PORT      (ends when its standard input does; says its address on stdout)
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from shoal.config import RunConfig
from shoal.dashboard.server import serve, token_of
from shoal.dashboard.sources import WatchedRun
from shoal.errors import UsageError

_NICER = 5  # training comes first


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher hears Ctrl-C, and lets go
    os.nice(_NICER)
    folder, port = Path(sys.argv[1]), int(sys.argv[2])
    config = RunConfig.load(folder)
    run = WatchedRun(config.run, Path(config.logs), folder)
    try:
        serve(lambda: [run], port, token_of(os.environ), _say, until=sys.stdin.buffer.read)
    except UsageError as error:
        print(error, flush=True)
        sys.exit(1)


def _say(address: str) -> None:
    print(f"the run's page: {address}", flush=True)


if __name__ == "__main__":
    main()
