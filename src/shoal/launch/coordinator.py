"""The coordinator's process.

python -m shoal.launch.coordinator RUN_FOLDER        (the launcher's leash is stdin and stdout)
"""

from __future__ import annotations

import signal
import sys
from functools import partial
from pathlib import Path

from shoal.clock import SystemClock
from shoal.cluster import folders
from shoal.cluster.coordinator import Coordinator
from shoal.cluster.leash import Leash
from shoal.config import RunConfig
from shoal.wire.keys import RunKey


def main() -> None:
    """Its standard error goes to the run's logs."""
    # The launcher hears Ctrl-C and tells; a signal meant for it must not end its coordinator first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    folder = Path(sys.argv[1])
    leash = Leash(sys.stdin.fileno(), sys.stdout.fileno())
    config = RunConfig.load(folder)
    open_department = None
    if config.servers is not None:
        from shoal.store.director import Director

        open_department = partial(Director, config.deadlines.stall)
    with folders.hold(folder):
        key = RunKey.load(folder / "key")
        coordinator = Coordinator(config, key, folder, leash, SystemClock(), open_department)
        try:
            coordinator.run()
        finally:
            coordinator.close()


if __name__ == "__main__":
    main()
