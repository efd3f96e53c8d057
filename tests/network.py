"""Two hosts, as two network namespaces with a cable between them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

FIRST, SECOND = "10.213.77.1", "10.213.77.2"
SENT = Path("/sys/class/net/cable/statistics/tx_bytes")  # as a process on one of the hosts sees it


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


class Hosts:
    """Two hosts with one cable between them."""

    def __init__(self) -> None:
        self.names = tuple(f"shoal{os.getpid()}{side}" for side in "ab")

    def __enter__(self) -> Hosts:
        one, other = self.names
        for name in self.names:
            _ip("netns", "add", name)
        _ip("link", "add", "cable", "netns", one, "type", "veth", "peer", "name", "cable", "netns", other)
        for name, address in zip(self.names, (FIRST, SECOND), strict=True):
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", "cable")
            for device in ("lo", "cable"):
                _ip("-n", name, "link", "set", device, "up")
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=20)

    def add_address(self, address: str) -> None:
        """To the first host, where the other knows no way to it."""
        _ip("-n", self.names[0], "addr", "add", f"{address}/32", "dev", "lo")

    def plug(self, state: str) -> None:
        _ip("-n", self.names[0], "link", "set", "cable", state)


def may_make_hosts() -> bool:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    try:
        with Hosts():
            return True
    except (subprocess.CalledProcessError, OSError):
        return False
