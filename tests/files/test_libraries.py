"""Libraries that open files themselves are followed like Python's own `open`: with stand-ins for them."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from shoal.hook.patching.library_files import _follow_h5py, _follow_records, _follow_writer

from .scene import Scene, Worker


class Records:
    """As tf.io.TFRecordWriter."""

    def __init__(self, path: Any, options: Any = None) -> None:
        self.file = builtins.open(path, "w")  # noqa: SIM115

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def close(self) -> None:
        self.file.close()


class Store:
    """As h5py.File."""

    def __init__(self, name: Any, mode: str = "r", driver: Any = None, libver: Any = None) -> None:
        with builtins.open(name, mode) as file:
            self.text = file.write("stored") if mode == "w" else file.read()


def of(worker: Worker, cls: type, follow: Any) -> Any:
    """The class as that worker's process has it."""
    own = type(cls.__name__, (cls,), dict(vars(cls)))
    follow(worker.files, own)
    follow(worker.files, own)  # imported again
    return own


def test_records_are_written_once_and_read_when_the_chief_has_closed_them(
    scene: Scene, chief: Worker, other: Worker
) -> None:
    path = str(scene.data / "a.tfrecord")
    chiefs, others = (of(worker, Records, _follow_records) for worker in (chief, other))
    first = chiefs(path)
    second = others(path)
    second.file.write("mine")
    first.file.write("chief's")
    other.meanwhile = [lambda: first.__exit__(None, None, None)]
    second.close()
    assert Path(path).read_text() == "chief's"
    assert other.read("a.tfrecord") == "mine"


def test_a_store_is_private_and_read_where_it_was_written(scene: Scene, chief: Worker, other: Worker) -> None:
    path = scene.data / "x.h5"
    for worker in (chief, other):
        store = of(worker, Store, _follow_h5py)
        store(path, "w")
        assert store(path).text == "stored"
    assert [found.read_text() for found in other.private.rglob("x.h5")] == [path.read_text()]


def test_unusual_stores_are_left_alone(scene: Scene, other: Worker) -> None:
    store = of(other, Store, _follow_h5py)
    store(bytes(scene.data / "x.h5"), "w")
    store(scene.data / "y.h5", "w", driver="core")
    assert len(list(scene.data.iterdir())) == 2


def test_a_function_that_writes_a_file_writes_it_once(
    scene: Scene, chief: Worker, other: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(obj: str, f: Any, protocol: int = 2) -> None:
        Path(f).write_text(obj)

    for worker in (chief, other):
        library = ModuleType("library")
        vars(library)["io"] = SimpleNamespace(save=save)
        monkeypatch.setitem(sys.modules, "library", library)
        _follow_writer(worker.files, "library", "io.save", 1)
        _follow_writer(worker.files, "library", "io.gone", 1)
        library.io.save(worker.id, scene.data / "state", protocol=4)
        assert worker.read("state") == worker.id
    assert (scene.data / "state").read_text() == "worker-0"
