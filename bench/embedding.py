"""Tables on parameter servers: how fast their rows travel, and whether a table may be larger than a worker's memory.

rows      a worker pulls the rows of a batch and pushes a gradient for each, to a server on another core that updates
          them with Keras's SGD (bench/pair.py; one batch at a time, and two); against numpy in one process, which
          gathers the same rows from a table of its own and adds gradients to them: with `np.add.at`, which takes
          ids that come twice, and with `table[ids] += gradients`, which does not
memory    a table larger than the memory that the worker may take is trained. The same script without servers, with
          the same limit, must fail

python bench/embedding.py [--quick] [--parts rows memory] > embedding.json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np

from contestants import end_with_bench
from harness import ROOT, Facts, Watch, report, same_against_itself, say, significant, spread, tournament
from pair import Operations, Pair, serve, work
from shoal.store.client import Client
from shoal.store.decisions.worker_state import BatchWork, LookUp
from shoal.store.values.rows import Fill, NewRows, Table
from shoal.store.values.tensors import Array, RowShapes, Tensors

TABLE = Table("table", 1_000_000, 64, NewRows(Fill.UNIFORM, -0.05, 0.05))
SHAPES = [RowShapes(TABLE.rows, TABLE.width)]
BATCH = 16_384  # rows
GOAL = 0.25  # of numpy
ADD_AT, PLAIN_ADD, PIPELINED = "numpy, add.at", "numpy, [ids] += ", "shoal, two batches at a time"
TRAINING = ROOT / "bench" / "peers" / "table_training.py"
PATIENCE = 240.0  # seconds


# The two processes --------------------------------------------------------------------------------------


def table(shard: int) -> Tensors:
    """All rows have been updated before, as in a training that has gone on for long."""
    os.environ["KERAS_BACKEND"] = "jax"
    import keras

    from shoal.hook.tables.row_table import RowTable

    everything = (np.arange(TABLE.rows), np.zeros((TABLE.rows, TABLE.width), np.float32))
    return RowTable(TABLE, 0, "table/embeddings", keras.optimizers.SGD(0.1), everything, None)


class RowWorker:
    """Pushes a gradient for every row that it has pulled."""

    def __init__(self, client: Client) -> None:
        self._client = client
        drawn = np.random.default_rng(0)
        self._batches = [np.sort(drawn.choice(TABLE.rows, BATCH, replace=False)) for _ in range(16)]
        self._gradients = np.ones((BATCH, TABLE.width), np.float32)
        self._own: Array | None = None
        self._turn = 0

    def operations(self) -> Operations:
        return {"exchange": self.exchange, ADD_AT: self.add_at, PLAIN_ADD: self.plain_add}

    def exchange(self) -> None:
        """One batch: rows that come, gradients that go."""
        while isinstance(todo := self._client.next(), LookUp):
            self._client.look_up(todo.batch, {0: self._of(todo.batch.place)})
        assert isinstance(todo, BatchWork)
        ids = self._of(todo.batch.place)
        rows = todo.weights[0][0].reshape(-1, TABLE.width)
        assert len(rows) == len(ids)
        self._client.push(todo.batch, [[ids, self._gradients.reshape(-1)]], None)

    def add_at(self) -> None:
        ids, own = self._next(), self._table()
        own[ids]
        np.add.at(own, ids, self._gradients)

    def plain_add(self) -> None:
        ids, own = self._next(), self._table()
        own[ids]
        own[ids] += self._gradients

    def _of(self, place: int) -> Array:
        return self._batches[place % len(self._batches)]

    def _next(self) -> Array:
        self._turn += 1
        return self._of(self._turn)

    def _table(self) -> Array:
        if self._own is None:
            self._own = np.ones((TABLE.rows, TABLE.width), np.float32)
        return self._own


# The bench ----------------------------------------------------------------------------------------------


def rows(given: argparse.Namespace, rng: random.Random) -> Facts:
    with Pair(1, __file__) as ours, Pair(1, __file__) as again, Pair(2, __file__) as pipelined:
        once = partial(ours.exchanges, given.seconds)
        check = same_against_itself(once, partial(again.exchanges, given.seconds), given.pairs, rng)
        others = {
            ADD_AT: partial(ours.alone, ADD_AT, given.seconds),
            PLAIN_ADD: partial(ours.alone, PLAIN_ADD, given.seconds),
            PIPELINED: partial(pipelined.exchanges, given.seconds),
        }
        duels = tournament(once, others, given.pairs, rng, say)
        counts = {"one batch at a time": ours.facts(), "two batches at a time": pipelined.facts()}
    ratio = duels[ADD_AT].ratio
    rate = spread([rate for duel in duels.values() for rate in duel.ours])["median"]
    return {
        "unit": "batches per second",
        "batch": {"rows": BATCH, "width": TABLE.width, "of": TABLE.rows},
        "ours": {"rows_per_second": significant(BATCH * rate), "counts": counts},
        "others": {name: duel.facts() for name, duel in duels.items()},
        "same_against_itself": check,
        "void": ["A/A is not 1.00"] if check["void"] else [],
        "goal": {"what": "rows pulled and pushed over numpy", "least": GOAL, "reached": ratio >= GOAL, "ratio": ratio},
    }


def memory(given: argparse.Namespace, rng: random.Random) -> Facts:
    """Of a worker: what it may take, and what the table would."""
    served = train("-m", "shoal", "run", "-n", "1", "--servers", "1", "--strategy", "ps", "--staleness", "1", TRAINING)
    alone = train(TRAINING)
    if served.returncode != 0:
        raise RuntimeError(f"the training failed:\n{served.stdout[-2000:]}\n{served.stderr[-4000:]}")
    told = json.loads(next(line for line in served.stdout.splitlines() if line.startswith("{")))
    return {**told, "without_servers_it_fails": alone.returncode != 0, "its_last_words": alone.stderr.strip()[-200:]}


def train(*words: object) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "KERAS_BACKEND": "jax", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, *map(str, words)]
    return subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=PATIENCE, preexec_fn=end_with_bench
    )


PARTS = {"rows": rows, "memory": memory}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--parts", nargs="+", choices=tuple(PARTS), default=list(PARTS))
    options.add_argument("--pairs", type=int, default=10)
    options.add_argument("--seconds", type=float, default=1.0, help="length of a slice")
    options.add_argument("--seed", type=int, default=random.randrange(10**6))
    options.add_argument("--quick", action="store_true", help="2 pairs of 0.5 s: shows that it works, no more")
    given = options.parse_args()
    if given.quick:
        given.pairs, given.seconds = 2, 0.5
    watch, rng = Watch(), random.Random(given.seed)
    parts = {part: PARTS[part](given, rng) for part in given.parts}
    shown = [["part", "figure"]]
    if "rows" in parts:
        found = parts["rows"]
        shown += [[name, f"{duel['ratio']['median']:.2f} times its rate"] for name, duel in found["others"].items()]
        shown.append(["rows per second", f"{found['ours']['rows_per_second']:,.0f}"])
    if "memory" in parts:
        shown.append(["memory", json.dumps(parts["memory"])])
    report({"bench": "embedding", "settings": vars(given), **parts, **watch.facts(("keras", "jax", "numpy"))}, shown)


if __name__ == "__main__":
    if sys.argv[1:2] == ["server"]:
        serve(Path(sys.argv[2]), int(sys.argv[3]), SHAPES, table)
    elif sys.argv[1:2] == ["worker"]:
        work(Path(sys.argv[2]), int(sys.argv[3]), SHAPES, [], lambda client: RowWorker(client).operations())
    else:
        main()
