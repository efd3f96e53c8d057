"""A port for a service that is not ours, and opens it itself."""

from __future__ import annotations

import socket


def free_loopback_port() -> str:
    """`127.0.0.1:port`. Free when it was looked for; somebody else may take it before it is used."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"
