"""A process of a worker's group that computes its part of the programs which the leader names. It runs no script.

python -m shoal.hook.mesh.follower COMMANDS ADDRESS PROCESSES NUMBER

COMMANDS: a pipe from the leader. It ends with it: when the pipe is closed this process is over at once, also in the
middle of a collective that the leader will never come to.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Sequence
from typing import Any, BinaryIO

import msgspec
import numpy as np

from shoal.ending import end_at_once

ORPHAN = 70  # exit code: its leader is gone


class NewValue(msgspec.Struct, frozen=True):
    """An array that comes with the command, and is kept under this number."""

    slot: int
    shape: tuple[int, ...]
    dtype: str
    is_rows: bool  # divided among the devices; otherwise whole on each


class Command(msgspec.Struct, frozen=True):
    """Leader -> follower: run a program on values that were sent, now or before. Bytes come beside it."""

    program: int
    values: tuple[int, ...]  # slots
    new: tuple[NewValue, ...]
    sizes: tuple[int, ...]  # bytes beside it: the program, if this follower does not know it (else 0), and new values
    rows: tuple[bool, ...]  # of each value, whether it is divided


def initialize(address: str, processes: int, number: int) -> None:
    """Before JAX looks for devices."""
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, processes, number, initialization_timeout=120)


class GroupDevices:
    """All devices of a group, on one axis."""

    def __init__(self) -> None:
        import jax

        self.mesh = jax.sharding.Mesh(np.array(jax.devices()), ("batch",))
        self.rows = jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec("batch"))
        self.whole = jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec())

    def sharding(self, is_rows: bool) -> Any:
        return self.rows if is_rows else self.whole

    def put(self, value: Any, is_rows: bool) -> Any:
        """Without asking the others whether they have the same."""
        import jax

        return jax.make_array_from_callback(value.shape, self.sharding(is_rows), lambda index: value[index])

    def program(self, exported: bytes, rows: Sequence[bool]) -> Any:
        """The same on every process: what is compiled is what was sent."""
        import jax
        from jax import export

        call = export.deserialize(bytearray(exported)).call
        return jax.jit(call, in_shardings=tuple(map(self.sharding, rows)), out_shardings=self.whole)


def _read(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        end_at_once(ORPHAN)
    return data


def _hear(stream: BinaryIO, heard: queue.Queue[tuple[Command, list[bytes]] | None]) -> None:
    """An empty command: the leader has come to a good end."""
    while size := int.from_bytes(_read(stream, 8), "little"):
        command = msgspec.msgpack.decode(_read(stream, size), type=Command)
        heard.put((command, [_read(stream, size) for size in command.sizes]))
    heard.put(None)
    _read(stream, 1)  # until it is closed


def main(words: Sequence[str]) -> None:
    heard: queue.Queue[tuple[Command, list[bytes]] | None] = queue.Queue(4)
    stream = os.fdopen(int(words[0]), "rb")
    threading.Thread(target=_hear, args=(stream, heard), daemon=True).start()
    initialize(words[1], int(words[2]), int(words[3]))
    import jax

    devices = GroupDevices()
    programs: dict[int, Any] = {}
    values: dict[int, Any] = {}
    while (got := heard.get()) is not None:
        command, (exported, *raw) = got
        if exported:
            programs[command.program] = devices.program(exported, command.rows)
        for new, data in zip(command.new, raw, strict=True):
            value = np.frombuffer(data, _dtype(new.dtype)).reshape(new.shape)
            values[new.slot] = devices.put(value, new.is_rows)
        values = {slot: values[slot] for slot in command.values}
        jax.block_until_ready(programs[command.program](*(values[slot] for slot in command.values)))
    jax.distributed.shutdown()  # waits for the leader's
    end_at_once(0)


def _dtype(name: str) -> Any:
    import jax.numpy as jnp

    return jnp.dtype(name)


if __name__ == "__main__":
    main(sys.argv[1:])
