"""The coordinator's process.

python -m shoal.launch.coordinator RUN_FOLDER        (the launcher's launcher's pipe is stdin and stdout)
"""

from __future__ import annotations

import signal
import sys
from functools import partial
from pathlib import Path

from shoal.clock import SystemClock
from shoal.cluster.coordinator import Coordinator
from shoal.cluster.launcher_pipe import LauncherPipe
from shoal.cluster.succession.succession_start import SuccessionStart
from shoal.config import RunConfig
from shoal.wire.keys import RunKey


def main() -> None:
    """Its standard error goes to the run's logs."""
    # The launcher hears Ctrl-C and tells; a signal meant for it must not end its coordinator first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    folder = Path(sys.argv[1])
    launcher_pipe = LauncherPipe(sys.stdin.fileno(), sys.stdout.fileno())
    config = RunConfig.load(folder)
    open_service = None
    if config.servers is not None:
        from shoal.store.decisions.director import Director

        open_service = partial(Director, config.deadlines.stall)
    key = RunKey.load(folder / "key")
    elected = SuccessionStart.load(folder)
    coordinator = Coordinator(config, key, folder, launcher_pipe, SystemClock(), open_service, elected)
    try:
        coordinator.run()
    finally:
        coordinator.close()


if __name__ == "__main__":
    main()
