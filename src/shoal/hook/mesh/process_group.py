"""A worker of several processes, whose devices compute the pieces together: one leader, which is the member of the run,
and followers, which compute what it names (`follower.py`). The group lives and dies as one.

The leader alone runs the script. It has the weights, the optimizer, the links to the rest of the run; followers have
copies of the weights for as long as they are what a piece is computed with.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from shoal.errors import MeshProcessLost
from shoal.hook.mesh.follower import Command, GroupDevices, NewValue, initialize
from shoal.wire.free_port import free_loopback_port

_NAMED_WITHIN = 5.0  # seconds in which the end of a follower that takes no commands is noticed
_CLOSED_WITHIN = 10.0  # seconds that a good end may take; a follower that was stopped never comes to it


class ProcessGroup:
    """The leader's side. `lost` is told, from a thread of its own, when a follower has ended; it does not return."""

    def __init__(self, me: str, processes: int, lost: Callable[[MeshProcessLost], None]) -> None:
        self._me = me
        self._lost = lost
        self._closing = False
        self._followers: list[subprocess.Popen[bytes]] = []
        self._pipes: list[int] = []
        self._watchers: list[threading.Thread] = []
        self._sent: dict[int, tuple[Any, int, Any]] = {}  # by id: the leader's array, its slot, the group's array
        self._slots = 0
        self._programs = 0
        self._known: set[int] = set()
        address = free_loopback_port()
        for number in range(1, processes):
            self._start(address, processes, number)
        initialize(address, processes, 0)
        self._devices: GroupDevices | None = None

    @property
    def devices(self) -> GroupDevices:
        if self._devices is None:
            self._devices = GroupDevices()
        return self._devices

    @property
    def ways(self) -> int:
        return int(self.devices.mesh.size)

    def new_program(self) -> int:
        self._programs += 1
        return self._programs

    def run(self, number: int, exported: bytes, own: Any, values: Sequence[Any], rows: Sequence[bool]) -> Any:
        """Runs a program on all devices. `own`: the leader's compiled form of it."""
        new, raw, slots, arrays, kept = [], [], [], [], {}
        for value, is_rows in zip(values, rows, strict=True):
            found = self._sent.get(id(value))
            if found is None or found[0] is not value:
                self._slots += 1
                host = np.ascontiguousarray(value).reshape(np.shape(value))
                new.append(NewValue(self._slots, host.shape, host.dtype.name, is_rows))
                raw.append(host.tobytes())
                found = (value, self._slots, self.devices.put(host, is_rows))
            kept[id(value)] = found
            slots.append(found[1])
            arrays.append(found[2])
        self._sent = kept
        program = b"" if number in self._known else exported
        self._known.add(number)
        command = Command(number, tuple(slots), tuple(new), tuple(map(len, (program, *raw))), tuple(rows))
        head = msgspec.msgpack.encode(command)
        self._send([len(head).to_bytes(8, "little"), head, program, *raw])
        return own(*arrays)

    def close(self) -> None:
        """A good end. Followers that do not come to it in time are killed."""
        self._closing = True
        ending = threading.Thread(target=self._end, name="the end of a mesh process group", daemon=True)
        ending.start()
        ending.join(_CLOSED_WITHIN)
        for pipe in self._pipes:
            os.close(pipe)
        for follower in self._followers:
            follower.kill()
            follower.wait()

    def _end(self) -> None:
        with contextlib.suppress(OSError, MeshProcessLost):
            self._send([bytes(8)])
            import jax

            jax.distributed.shutdown()

    def _send(self, parts: Sequence[bytes]) -> None:
        """To all followers. If one has ended, its watcher says so, and does not return."""
        data = b"".join(parts)
        for number, (pipe, watcher) in enumerate(zip(self._pipes, self._watchers, strict=True), 1):
            view = memoryview(data)
            try:
                while view:
                    view = view[os.write(pipe, view) :]
            except BrokenPipeError as error:
                watcher.join(_NAMED_WITHIN)
                raise MeshProcessLost(
                    f"{self._me}: its mesh process {number} of {len(self._pipes) + 1} takes no commands any more"
                ) from error

    def _start(self, address: str, processes: int, number: int) -> None:
        theirs, ours = os.pipe()
        words = [sys.executable, "-m", "shoal.hook.mesh.follower", str(theirs), address, str(processes), str(number)]
        follower = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=2, pass_fds=[theirs])
        os.close(theirs)
        self._followers.append(follower)
        self._pipes.append(ours)
        watcher = threading.Thread(target=self._watch, args=(follower, number, processes), daemon=True)
        self._watchers.append(watcher)
        watcher.start()

    def _watch(self, follower: subprocess.Popen[bytes], number: int, processes: int) -> None:
        code = follower.wait()
        if self._closing:
            return
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        self._lost(MeshProcessLost(f"{self._me}: its mesh process {number} of {processes} {how}"))


class GroupProgram:
    """A function of trees of arrays, computed by all devices of a group. Its results are on the host, whole.

    `batch`: which of the arguments has rows, which are divided among the devices.
    """

    def __init__(self, group: ProcessGroup, function: Callable[..., Any], batch: Callable[..., Any]) -> None:
        self._group = group
        self._function = function
        self._batch = batch
        self._made: dict[Any, tuple[int, bytes, Any, Any]] = {}

    def __call__(self, *arguments: Any) -> Any:
        import jax

        values, tree = jax.tree.flatten(arguments)
        of_batch = {id(leaf) for leaf in jax.tree.leaves(self._batch(*arguments))}
        ways = self._group.ways
        rows = tuple(
            id(value) in of_batch and bool(np.shape(value)) and np.shape(value)[0] % ways == 0 for value in values
        )
        kinds = tuple((np.shape(value), jax.dtypes.canonicalize_dtype(np.result_type(value)).name) for value in values)
        values = [
            value if str(value.dtype) == kind[1] else np.asarray(value, kind[1])
            for value, kind in zip(map(_array, values), kinds, strict=True)
        ]
        key = (tree, rows, kinds)
        if key not in self._made:
            self._made[key] = self._make(tree, rows, kinds)
        number, exported, own, out = self._made[key]
        found = self._group.run(number, exported, own, values, rows)
        return jax.tree.unflatten(out, [np.asarray(one) for one in found])

    def _make(self, tree: Any, rows: Sequence[bool], kinds: Sequence[Any]) -> tuple[int, bytes, Any, Any]:
        import jax
        from jax import export

        devices = self._group.devices
        out: list[Any] = []

        def flat(*values: Any) -> tuple[Any, ...]:
            given, structure = jax.tree.flatten(self._function(*jax.tree.unflatten(tree, values)))
            out.append(structure)
            return tuple(given)

        shardings = tuple(map(devices.sharding, rows))
        shapes = [
            jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
            for (shape, dtype), sharding in zip(kinds, shardings, strict=True)
        ]
        program = jax.jit(flat, in_shardings=shardings, out_shardings=devices.whole)
        exported = bytes(export.export(program)(*shapes).serialize())
        return self._group.new_program(), exported, devices.program(exported, rows), out[-1]


def _array(value: Any) -> Any:
    return value if hasattr(value, "dtype") and hasattr(value, "shape") else np.asarray(value)


class ProcessGroups:
    """This process's, if its worker has several processes."""

    def __init__(self) -> None:
        self.group: ProcessGroup | None = None

    def close(self) -> None:
        if self.group is not None:
            self.group.close()
            self.group = None
