"""A program that several workers need is compiled by one of them; nobody waits for one that is gone."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from shoal.hook.backends.jax.compile_once import SharedCache

from .runs import Trainings, succeeded


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


def test_a_folder_that_can_only_be_read_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SharedCache(tmp_path).put("program", b"code")

    def read_only(*_: object) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "open", read_only)  # root may write anywhere, whatever the folder's mode says
    cache = SharedCache(tmp_path)
    assert cache.get("another") is None


def test_two_workers_of_a_run_compile_every_program_once(trainings: Trainings) -> None:
    empty = trainings.folder / "cache"
    trainings.environ["XDG_CACHE_HOME"] = str(empty)
    succeeded(trainings.shoal("jax", "-n 2", "count_compilations.py", trainings.folder))
    compiled = [int(path.read_text()) for path in trainings.folder.glob("compiled-*")]
    (cache,) = (empty / "shoal" / "jax").iterdir()
    programs = list(cache.glob("*-cache"))
    assert len(compiled) == 2
    assert sum(compiled) == len(programs) > 5
    assert not list(cache.glob("*-lock"))
