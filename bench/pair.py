"""A worker and a server of the store, in a process and on a core each: how long a push and a pull take.

Client, server and connection are those of a run. The tensors are toys, and nothing is computed: what an update costs
is the optimizer's affair. Who may do what next is decided in the process itself, by a director of its own, so that no
coordinator is in the way.

    python bench/pair.py server|worker FOLDER AHEAD        (one half; told over stdin what to do, answers in JSON)
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from contestants import ANSWER, end_with_bench
from harness import Facts, significant
from shoal.cluster.coordinator_service import SendMessage
from shoal.errors import RunEnded
from shoal.launch.environment import KEEP_MEMORY
from shoal.store.client import Client
from shoal.store.decisions.director import Director
from shoal.store.decisions.director_messages import TO_DIRECTOR, Open, Serve
from shoal.store.decisions.worker_state import BatchWork, Weights
from shoal.store.server import Server
from shoal.store.values.tensors import AnyShapes, Array, ArrayShape, RowShapes, Shapes, ShardShapes, Tensors
from shoal.wire.keys import RunKey
from shoal.wire.listener import Listener

LAYER = ArrayShape("float32", 2048 * 2048)
SHARD: Shapes = (LAYER, LAYER, LAYER)
SHARDS = [ShardShapes(SHARD, SHARD)] * 2  # as many as a run with one server has
BYTES = sum(4 * shape.size for shard in SHARDS for shape in shard.weights)  # 100.7 MB
Operations = dict[str, Callable[[], None]]
KEY = RunKey(b"benchmark".ljust(32))
WORKER, SERVER = "worker-0", "server-0"
ENDLESS = 10**9  # batches of the only epoch
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
CORES = {"worker": 0, "server": 1}


class Pair:
    """The bench's side of the two."""

    def __init__(self, ahead: int, script: str = __file__) -> None:
        """`ahead`: updates at a time. One: a push, then a pull. Two: one's pull while the other is pushed.

        `script`: what the halves run, with the arguments of this one.
        """
        self._folder = Path(tempfile.mkdtemp(prefix="bench-"))
        environ = {**os.environ, **KEEP_MEMORY, **ONE_THREAD}
        self._halves = {
            half: subprocess.Popen(
                ["taskset", "-c", str(core), sys.executable, script, half, str(self._folder), str(ahead)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environ,
                preexec_fn=end_with_bench,
            )
            for half, core in CORES.items()
        }
        self._moved = 0
        self._used: dict[str, list[float]] = {half: [0.0, 0.0] for half in CORES}  # CPU seconds and page faults

    def __enter__(self) -> Pair:
        try:
            self.exchange(0.2)
        except BaseException:
            self.__exit__()
            raise
        self._moved = 0
        self._used = {half: [0.0, 0.0] for half in CORES}
        return self

    def __exit__(self, *_: object) -> None:
        for half in self._halves.values():
            assert half.stdin
            with contextlib.suppress(BrokenPipeError):
                half.stdin.close()
        for half in self._halves.values():
            try:
                half.wait(10)
            except subprocess.TimeoutExpired:
                half.kill()
                half.wait()
        shutil.rmtree(self._folder)

    def exchange(self, seconds: float) -> float:
        """Push and pull for so long. Returns bytes per second, both ways counted."""
        return 2 * BYTES * self.exchanges(seconds)

    def exchanges(self, seconds: float) -> float:
        """Push and pull for so long. Returns how often per second."""
        before = self._usage()
        answer = self._ask("worker", "exchange", seconds)
        for half, (cpu, faults) in self._usage().items():
            self._used[half][0] += cpu - before[half][0]
            self._used[half][1] += faults - before[half][1]
        self._moved += int(answer["count"]) + 1  # the untimed one too
        return answer["count"] / answer["seconds"]

    def memcpy(self, seconds: float) -> float:
        """The worker copies as many bytes, on its core, for so long. Returns bytes copied per second."""
        return BYTES * self.alone("memcpy", seconds)

    def alone(self, what: str, seconds: float) -> float:
        """The worker does this by itself, on its core, for so long. Returns how often per second."""
        answer = self._ask("worker", what, seconds)
        return answer["count"] / answer["seconds"]

    def facts(self) -> Facts:
        """What noise does not touch, for one push and one pull."""
        return {
            half: {
                "cpu_ms": significant(1e3 * cpu / max(1, self._moved)),
                "page_faults": significant(faults / max(1, self._moved)),
            }
            for half, (cpu, faults) in self._used.items()
        }

    def _usage(self) -> dict[str, tuple[float, float]]:
        answers = {half: self._ask(half, "usage", 0.0) for half in self._halves}
        return {half: (answer["cpu"], answer["faults"]) for half, answer in answers.items()}

    def _ask(self, half: str, word: str, seconds: float) -> dict[str, float]:
        process = self._halves[half]
        assert process.stdin
        assert process.stdout
        process.stdin.write(json.dumps([word, seconds]) + "\n")
        process.stdin.flush()
        if not select.select([process.stdout], [], [], seconds + ANSWER)[0]:
            raise RuntimeError(f"the {half} of a pair does not answer")
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the {half} of a pair died")
        answer: dict[str, float] = json.loads(line)
        return answer


# One of the two processes -------------------------------------------------------------------------------


class DirectorAtHand:
    """In place of a link to the coordinator, for a client or a server: nobody comes or goes here."""

    def __init__(self, me: str, address: str, ahead: int, shapes: Sequence[AnyShapes]) -> None:
        self._me = me
        self._reader: Any = None
        self._director = Director(3600.0)
        self._director.take((WORKER,), {SERVER: address}, 1, 0.0)
        tables = tuple(shard for shard, shape in enumerate(shapes) if isinstance(shape, RowShapes))
        sizes = tuple(sum(part.nbytes for part in shape.pulled(1)) for shape in shapes)
        self.opened = Open(0, sizes, 0, ENDLESS, None, 1, ahead, tables=tables)

    def hear(self, sender: str, content: bytes) -> None:
        for wish in self._director.hear(sender, content, 0.0):
            if isinstance(wish, SendMessage) and self._me in wish.to:
                self._reader.read(wish.content)

    def read_with(self, reader: Any) -> None:
        self._reader = reader

    def write(self, content: bytes) -> None:
        self.hear(self._me, content)


class Toy:
    """A shard whose update takes no time: the first number of each array is the last gradient's."""

    rows = 0

    def __init__(self) -> None:
        self._values = [np.zeros(shape.size, np.float32) for shape in SHARD]

    def apply(self, epoch: int, gradients: Sequence[Array], rate: float | None, scale: float) -> None:
        for value, gradient in zip(self._values, gradients, strict=True):
            value[0] = gradient[0]

    def weights(self, asked: Sequence[Array]) -> Sequence[Array]:
        return self._values

    def averages(self) -> Sequence[Array]:
        return self._values

    def set_weights(self, weights: Sequence[Array]) -> None:
        for value, weight in zip(self._values, weights, strict=True):
            value[:] = weight

    def state(self) -> Sequence[Array]:
        return self._values

    def state_shapes(self, rows: int) -> Shapes:
        return SHARD

    def load(self, state: Sequence[Array]) -> None:
        self.set_weights(state)

    def digest(self) -> int:
        return 0

    def listed(self, start: int) -> Sequence[Array]:
        return ()


def serve(folder: Path, ahead: int, shapes: Sequence[AnyShapes], make: Callable[[int], Tensors]) -> None:
    listener = Listener(address_in(folder), KEY)
    director = DirectorAtHand(SERVER, listener.address, ahead, shapes)
    director.hear(WORKER, TO_DIRECTOR.encode(director.opened))
    server = Server(SERVER, 0, director, listener, KEY, shapes, make)  # type: ignore[arg-type]

    def until_over() -> None:
        with contextlib.suppress(RunEnded):
            server.serve()

    thread = threading.Thread(target=until_over)
    thread.start()
    answer_commands({})
    server.over(RunEnded("the bench is over"))
    thread.join()
    server.close()
    listener.close()


def work(
    folder: Path, ahead: int, shapes: Sequence[AnyShapes], initial: Weights, operations: Callable[[Client], Operations]
) -> None:
    """`operations`: what the worker can be told to do."""
    director = DirectorAtHand(WORKER, address_in(folder), ahead, shapes)
    director.hear(SERVER, TO_DIRECTOR.encode(Serve(0)))
    client = Client(WORKER, 0, director, KEY, shapes, initial, ahead)  # type: ignore[arg-type]
    client.open(director.opened)
    answer_commands(operations(client))
    client.close()


class ToyWorker:
    """Pushes what it has at once for what it has pulled."""

    def __init__(self, client: Client, ahead: int) -> None:
        self._client = client
        self._ahead = ahead
        # One more than can be on their way: what is pushed must stay as it is until it has arrived.
        sets = [[[np.ones(s.size, np.float32) for s in shard.gradients] for shard in SHARDS] for _ in range(ahead + 1)]
        self._gradients = cycle(sets)
        self._copy = [[np.zeros(s.size, np.float32) for s in shard.gradients] for shard in SHARDS]
        self._todo: BatchWork | None = None
        self._pushed = 0

    def exchange(self) -> None:
        """A push, and the next pull that is not yet there."""
        if self._todo is None:
            self._todo = self._next()
        gradients = next(self._gradients)
        self._pushed += 1
        for shard in gradients:
            for array in shard:
                array[0] = self._pushed
        self._client.push(self._todo.batch, gradients, None)
        self._todo = self._next()
        newest = self._todo.weights[-1][-1][0]
        if newest < self._pushed - self._ahead + 1:
            raise RuntimeError(f"after {self._pushed} pushes the weights are those of the {newest:.0f}th")

    def operations(self) -> Operations:
        return {"exchange": self.exchange, "memcpy": self.memcpy}

    def memcpy(self) -> None:
        """Of as many bytes as are pushed."""
        for mine, theirs in zip(self._copy, next(self._gradients), strict=True):
            for to, origin in zip(mine, theirs, strict=True):
                np.copyto(to, origin)

    def _next(self) -> BatchWork:
        todo = self._client.next()
        assert isinstance(todo, BatchWork)
        return todo


def answer_commands(operations: Operations) -> None:
    """Until the bench hangs up."""
    for line in sys.stdin:
        word, seconds = json.loads(line)
        if word == "usage":
            used = resource.getrusage(resource.RUSAGE_SELF)
            answer = {"cpu": used.ru_utime + used.ru_stime, "faults": float(used.ru_minflt)}
        else:
            operations[word]()  # untimed
            answer = repeat(operations[word], seconds)
        print(json.dumps(answer), flush=True)


def repeat(operation: Any, seconds: float) -> dict[str, float]:
    begun = now = time.perf_counter()
    count = 0
    while now - begun < seconds or count < 3:
        operation()
        count += 1
        now = time.perf_counter()
    return {"count": count, "seconds": now - begun}


def address_in(folder: Path) -> str:
    return f"unix:{folder}/server.sock"


def main() -> None:
    half, folder, ahead = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    if half == "server":
        serve(folder, ahead, SHARDS, lambda shard: Toy())
    else:
        initial = [[np.zeros(shape.size, np.float32) for shape in shard.weights] for shard in SHARDS]
        work(folder, ahead, SHARDS, initial, lambda client: ToyWorker(client, ahead).operations())


if __name__ == "__main__":
    main()
