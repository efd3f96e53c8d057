"""Workers come from a process that has imported keras once; without it they come as well."""

from __future__ import annotations

import os
import signal

from .launched import Launched, World, eventually

# Nothing here changes the environment, or the nursery would not be used.
PRELUDE = """
import os, sys, time
from pathlib import Path
import shoal

def mark(name, text=""):
    draft = Path(f".{name}-{os.getpid()}")
    draft.write_text(str(text))
    draft.rename(f"mark-{name}-{os.getpid()}")
def until(word):
    while not Path(f"word-{word}").exists(): time.sleep(0.01)
"""


def start(world: World, text: str, *options: object) -> Launched:
    path = world.folder / "train.py"
    path.write_text(PRELUDE + text)
    return world.shoal("run", "--backend", "jax", "-n", 2, *options, path)


def test_workers_are_the_launchers_children_with_keras_imported_and_a_name_of_their_own(world: World):
    run = start(world, "mark('up', (os.getppid(), 'keras' in sys.modules))\nuntil('go')\n")
    eventually(lambda: len(world.marks("up")) == 2, "both are up")
    assert world.marks("up") == [str((run.process.pid, True))] * 2
    assert run.pid("worker-0") != run.pid("worker-1") != run.pid("nursery")
    world.tell("go")
    assert run.wait() == 0, run.err
    assert world.is_clean()


def test_if_the_nursery_is_killed_before_anybody_came_from_it_they_come_by_themselves(world: World):
    run = start(world, "mark('up', 'keras' in sys.modules)\n")
    eventually(lambda: run.finds("nursery"), "there is a nursery")
    os.kill(run.pid("nursery"), signal.SIGKILL)
    assert run.wait() == 0, run.err
    assert world.marks("up") == ["False", "False"]
    assert world.is_clean()


def test_a_dead_worker_is_replaced_from_the_nursery_and_without_it(world: World):
    run = start(world, "mark('up', 'keras' in sys.modules)\nuntil('go')\n")
    eventually(lambda: len(world.marks("up")) == 2, "both are up")
    os.kill(run.pid("worker-1"), signal.SIGKILL)
    eventually(lambda: world.marks("up") == ["True", "True", "True"], "another came from the nursery")
    os.kill(run.pid("nursery"), signal.SIGKILL)
    os.kill(run.pid("worker-2"), signal.SIGKILL)
    eventually(lambda: world.marks("up") == ["False", "True", "True", "True"], "one more came by itself")
    world.tell("go")
    assert run.wait() == 0, run.err
    assert world.is_clean()


def test_a_script_that_chooses_its_backend_has_it(world: World):
    chooses = "os.environ['KERAS_BACKEND'] = 'torch'\nimport keras\nmark('backend', keras.backend.backend())\n"
    run = start(world, chooses)
    assert run.wait() == 0, run.err
    assert world.marks("backend") == ["torch", "torch"]


def test_a_module_that_chooses_another_backend_is_told_where_to_say_it(world: World):
    (world.folder / "settings.py").write_text("import os\nos.environ['KERAS_BACKEND'] = 'torch'\n")
    run = start(world, "import settings\nimport keras\nkeras.Sequential([keras.layers.Dense(1)]).compile()\n")
    assert run.wait() == 1
    assert "KERAS_BACKEND was set to torch in a module that the script imports" in run.err
    assert "shoal run --backend torch" in run.err


def test_a_worker_that_raises_shows_its_own_frames_alone(world: World):
    run = start(world, "def deep():\n    1 / 0\ndeep()\n")
    assert run.wait() == 1
    assert "ZeroDivisionError" in run.err
    assert "nursery.py" not in run.err
    assert "worker.py" not in run.err
