"""A run's nodes of a Ray cluster: a placement group, held by a process that is the only one here to hold it.

Ray is imported in processes of its own: it is large, starts threads and takes signals. They end, and Ray takes back
what they hold, when their standard input does: with the launcher, however it ends.
"""

from __future__ import annotations

import importlib.util
import selectors
import subprocess
import sys
import time
from dataclasses import dataclass

import msgspec

from shoal.errors import UsageError
from shoal.launch.processes import hold_interrupts
from shoal.launch.remote.host_list import HostSlots
from shoal.launch.remote.ray_nodes import RayBundle
from shoal.launch.remote.remote_shell import AbstractRemoteShell, quoted

_RESERVED_WITHIN = 120.0  # seconds
_END_WITHIN = 10.0  # seconds
AUTO = "auto"  # the cluster that this host is a part of, or that RAY_ADDRESS names


class RayWish(msgspec.Struct, frozen=True):
    """Launcher -> holder: what to reserve."""

    address: str
    workers: int | None
    threads: int | None


class RayReserved(msgspec.Struct, frozen=True):
    """Holder -> launcher: what was reserved, or why nothing was."""

    bundles: tuple[RayBundle, ...] = ()
    group: str = ""
    refused: str = ""


class RayReservation:
    """The nodes, from now until `close`. UsageError if the cluster can't be reached or has no room."""

    def __init__(self, wish: RayWish) -> None:
        if importlib.util.find_spec("ray") is None:
            raise UsageError("--ray needs Ray: pip install 'shoal[ray]'.")
        with hold_interrupts():
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "shoal.launch.remote.ray_holder"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        try:
            self._reserved = self._ask(wish)
        except BaseException:
            self.close()
            raise
        self._address = wish.address

    @property
    def hosts(self) -> tuple[HostSlots, ...]:
        return tuple(HostSlots(bundle.name, bundle.workers) for bundle in self._reserved.bundles)

    @property
    def shell(self) -> Ray:
        return Ray(self._address, self._reserved.group, self._reserved.bundles)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def _ask(self, wish: RayWish) -> RayReserved:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._process.stdin.write(msgspec.json.encode(wish) + b"\n")
        self._process.stdin.flush()
        said = b""
        until = time.monotonic() + _RESERVED_WITHIN
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not said.endswith(b"\n"):
                if not selector.select(max(0.0, until - time.monotonic())):
                    raise UsageError(
                        f"--ray: the cluster at {wish.address} did not answer within {_RESERVED_WITHIN:.0f} s."
                    )
                read = self._process.stdout.read1()  # type: ignore[attr-defined]
                if not read:
                    last = self._process.stderr.read().decode(errors="replace")
                    raise UsageError(f"--ray: what was to reserve nodes ended.{quoted(last)}")
                said += read
        reserved = msgspec.json.decode(said, type=RayReserved)
        if reserved.refused:
            raise UsageError(reserved.refused)
        return reserved


@dataclass(frozen=True, slots=True)
class Ray(AbstractRemoteShell):
    """An actor in a bundle of the placement group starts the command, and passes its streams on."""

    address: str
    group: str
    bundles: tuple[RayBundle, ...]
    program: str = "Ray"
    answer_within: float = 180.0  # a worker process of Ray's is started first
    may_be_here: bool = False

    def command(self, host: str, words: list[str]) -> list[str]:
        number, bundle = self._find(host)
        place = [self.address, self.group, str(number), str(bundle.cpus), str(bundle.gpus)]
        return [sys.executable, "-P", "-m", "shoal.launch.remote.ray_pipe", *place, "--", *words]

    def host_name(self, host: str) -> str:
        return self._find(host)[1].node.address

    def explain(self, host: str, code: int, said: str) -> str:
        return f"the agent that Ray started there is gone (code {code}).{quoted(said)}"

    def _find(self, host: str) -> tuple[int, RayBundle]:
        return next((i, bundle) for i, bundle in enumerate(self.bundles) if bundle.name == host)
