"""Hosts, as network namespaces: two with a cable between them, or several at a switch."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

FIRST, SECOND = "10.213.77.1", "10.213.77.2"
SENT = Path("/sys/class/net/cable/statistics/tx_bytes")  # as a process on one of the hosts sees it


def address_of(number: int) -> str:
    """Of the host that comes at this place, from 0."""
    return f"10.213.77.{number + 1}"


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20, text=True).stdout


class Hosts:
    """Each has one cable: to the other, or to the switch if there are more than two."""

    def __init__(self, count: int = 2) -> None:
        self.names = tuple(f"shoal{os.getpid()}{chr(ord('a') + number)}" for number in range(count))
        self._switch = f"shoal{os.getpid()}switch" if count > 2 else None

    def __enter__(self) -> Hosts:
        for name in (*self.names, *filter(None, [self._switch])):
            _ip("netns", "add", name)
        if self._switch is None:
            one, other = self.names
            _ip("link", "add", "cable", "netns", one, "type", "veth", "peer", "name", "cable", "netns", other)
        else:
            _ip("-n", self._switch, "link", "add", "switch", "type", "bridge")
            _ip("-n", self._switch, "link", "set", "switch", "up")
            for number, name in enumerate(self.names):
                port = f"port{number}"
                _ip("link", "add", "cable", "netns", name, "type", "veth", "peer", "name", port, "netns", self._switch)
                _ip("-n", self._switch, "link", "set", port, "master", "switch", "up")
        for number, name in enumerate(self.names):
            _ip("-n", name, "addr", "add", f"{address_of(number)}/24", "dev", "cable")
            for device in ("lo", "cable"):
                _ip("-n", name, "link", "set", device, "up")
        return self

    def __exit__(self, *_: object) -> None:
        for name in (*self.names, *filter(None, [self._switch])):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=20)

    def add_address(self, address: str) -> None:
        """To the first host, where the other knows no way to it."""
        _ip("-n", self.names[0], "addr", "add", f"{address}/32", "dev", "lo")

    def drop_port(self, port: int) -> None:
        """Of the first host, as a firewall does: who connects to it from elsewhere gets no answer."""
        _ip("-n", self.names[0], "rule", "add", "ipproto", "tcp", "sport", str(port), "blackhole")

    def plug(self, state: str, number: int = 0) -> None:
        """The cable of this host, in or out."""
        _ip("-n", self.names[number], "link", "set", "cable", state)

    def kill(self, number: int) -> None:
        """Everything that runs on this host, at once, with its network: as if its plug had been pulled."""
        self.plug("down", number)
        for pid in self.processes(number):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def processes(self, number: int) -> list[int]:
        """Everything that runs on this host."""
        return [int(pid) for pid in _ip("netns", "pids", self.names[number]).split()]


def may_make_hosts() -> bool:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    try:
        with Hosts():
            return True
    except (subprocess.CalledProcessError, OSError):
        return False
