"""A command on a node of a Ray cluster, with our standard streams as its own.

    python -m shoal.launch.remote.ray_pipe ADDRESS GROUP BUNDLE CPUS GPUS -- COMMAND …

An actor on the node starts the command and passes its streams on. Whoever reads our output sees the end of the command,
and of the node; the command reads the end of its input when ours has ended.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from typing import Any

_CHUNK = 1 << 16
_GRACE = 4.0  # seconds for the command to follow the end of its input


class AgentHost:
    """On the node: one command. Its verbs are called at the same time, by a thread of Ray's each."""

    def __init__(self, words: list[str]) -> None:
        # Ray starts its processes with a low priority, which a training on a node that others use would starve with.
        with contextlib.suppress(OSError):  # only the superuser may
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)

    def write(self, data: bytes) -> None:
        """To its input; no bytes: that was all."""
        assert self._process.stdin is not None
        try:
            if data:
                self._process.stdin.write(data)
                self._process.stdin.flush()
            else:
                self._process.stdin.close()
        except OSError:
            pass  # it has ended, which its output tells

    def read(self, number: int) -> bytes:
        """Of its output (1) or errors (2), when there is some; no bytes: that was all."""
        stream = self._process.stdout if number == 1 else self._process.stderr
        assert stream is not None
        return bytes(os.read(stream.fileno(), _CHUNK))

    def wait(self) -> int:
        return self._process.wait()


def main() -> None:
    import ray
    from ray.util.placement_group import PlacementGroup
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    address, group, bundle, cpus, gpus = sys.argv[1:6]
    out, err = os.dup(1), os.dup(2)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)  # what Ray prints is not the command's
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    placed = PlacementGroupSchedulingStrategy(
        placement_group=PlacementGroup(ray.PlacementGroupID.from_hex(group)), placement_group_bundle_index=int(bundle)
    )
    options = {"num_cpus": int(cpus), "num_gpus": int(gpus), "scheduling_strategy": placed, "max_concurrency": 8}
    actor = ray.remote(AgentHost).options(**options).remote(sys.argv[7:])
    code = [1]
    try:
        readers = [
            threading.Thread(target=_pass_on, args=(ray, actor, number, to), daemon=True)
            for number, to in ((1, out), (2, err))
        ]
        for reader in readers:
            reader.start()
        threading.Thread(target=_feed, args=(ray, actor), daemon=True).start()
        code[0] = int(ray.get(actor.wait.remote()))
        for reader in readers:
            reader.join(_GRACE)
    except Exception as error:  # Ray's: the actor or its node is gone
        os.write(err, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}\n".encode())
    os._exit(code[0] if code[0] >= 0 else 128 - code[0])  # Ray's own farewell takes seconds, and nobody needs it


def _pass_on(ray: Any, actor: Any, number: int, to: int) -> None:
    try:
        while data := ray.get(actor.read.remote(number)):
            while data:
                data = data[os.write(to, data) :]
    except Exception:
        return  # gone; `wait` says so


def _feed(ray: Any, actor: Any) -> None:
    try:
        while data := os.read(0, _CHUNK):
            ray.get(actor.write.remote(data))
        ray.get(actor.write.remote(b""))
    except Exception:
        return
    threading.Event().wait(_GRACE)
    os._exit(1)  # our launcher is gone, and with this process the actor and all that it has started


if __name__ == "__main__":
    main()
