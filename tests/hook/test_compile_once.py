"""A program that several workers need is compiled by one of them; nobody waits for one that is gone."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from shoal.hook.compile_once import SharedCache


def test_what_was_put_is_found_whole(tmp_path: Path) -> None:
    cache = SharedCache(tmp_path)
    assert cache.get("program") is None
    cache.put("program", b"code")
    assert SharedCache(tmp_path).get("program") == b"code"
    assert [path.name for path in tmp_path.iterdir()] == ["program-cache"], "neither a lock nor a draft stays"


def test_the_second_one_waits_for_the_first_and_does_not_compile(tmp_path: Path) -> None:
    compiled: list[str] = []
    both_need_it = threading.Barrier(2)

    def work(name: str) -> None:
        cache = SharedCache(tmp_path)
        both_need_it.wait()
        if cache.get("program") is None:
            compiled.append(name)
            cache.put("program", b"code")

    workers = [threading.Thread(target=work, args=(name,)) for name in ("worker-0", "worker-1")]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(10)
    assert len(compiled) == 1


def test_a_program_that_is_not_put_is_given_back_with_the_next_one(tmp_path: Path) -> None:
    first, second = SharedCache(tmp_path), SharedCache(tmp_path, patience=60)
    assert first.get("with callbacks") is None  # JAX does not keep such a one
    assert first.get("another") is None
    assert second.get("with callbacks") is None, "its lock was given back"


def test_who_dies_while_compiling_keeps_nobody_waiting(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        SharedCache(tmp_path).get("program")
        os._exit(9)
    os.waitpid(child, 0)
    assert SharedCache(tmp_path, patience=60).get("program") is None


def test_who_has_waited_for_too_long_compiles(tmp_path: Path) -> None:
    stopped = SharedCache(tmp_path)
    stopped.get("program")
    impatient = SharedCache(tmp_path, patience=0.01)
    assert impatient.get("program") is None
    impatient.put("program", b"code")
    assert impatient.get("program") == b"code"
