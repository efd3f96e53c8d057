"""An S3 on this machine, for tests: prints its port, and lives until its input ends."""

from __future__ import annotations

import sys

from moto.server import ThreadedMotoServer

server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
