"""Workers come from a process that has imported keras once; without it they come as well."""

from __future__ import annotations

import os
import signal

from .launched import Launched, World, eventually

# Nothing here changes the environment, or the prefork process would not be used.
PRELUDE = """
import os, sys, time
from pathlib import Path
import shoal

shoal.rank()  # who asks handles its files itself
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
    world.starts_anew = True
    return world.shoal("run", *(options or ("--backend", "jax")), "-n", 2, path)


def test_workers_are_the_launchers_children_with_the_backend_imported_and_a_name_of_their_own(world: World):
    run = start(world, "mark('up', (os.getppid(), 'jax' in sys.modules))\nuntil('go')\n")
    eventually(lambda: len(world.marks("up")) == 2, "both are up")
    assert world.marks("up") == [str((run.process.pid, True))] * 2
    assert run.pid("worker-0") != run.pid("worker-1") != run.pid("prefork")
    world.tell("go")
    assert run.wait() == 0, run.err
    assert world.is_clean()


def test_if_the_prefork_is_killed_before_anybody_came_from_it_they_come_by_themselves(world: World):
    run = start(world, "mark('up', 'jax' in sys.modules)\n")
    eventually(lambda: run.finds("prefork"), "there is a prefork process")
    os.kill(run.pid("prefork"), signal.SIGKILL)
    assert run.wait() == 0, run.err
    assert world.marks("up") == ["False", "False"]
    assert world.is_clean()


def test_a_dead_worker_is_replaced_from_the_prefork_and_without_it(world: World):
    run = start(world, "mark('up', 'jax' in sys.modules)\nuntil('go')\n")
    eventually(lambda: len(world.marks("up")) == 2, "both are up")
    os.kill(run.pid("worker-1"), signal.SIGKILL)
    eventually(lambda: world.marks("up") == ["True", "True", "True"], "another came from the prefork process")
    os.kill(run.pid("prefork"), signal.SIGKILL)
    os.kill(run.pid("worker-2"), signal.SIGKILL)
    eventually(lambda: world.marks("up") == ["False", "True", "True", "True"], "one more came by itself")
    world.tell("go")
    assert run.wait() == 0, run.err
    assert world.is_clean()


def test_a_script_that_chooses_its_backend_has_it_from_the_start(world: World):
    chooses = "os.environ['KERAS_BACKEND'] = 'torch'\nhere = 'torch' in sys.modules\nimport keras\n"
    run = start(world, chooses + "mark('backend', (here, keras.backend.backend()))\n", "--threads", 1)
    assert run.wait() == 0, run.err
    assert world.marks("backend") == [str((True, "torch"))] * 2
    assert "· torch ·" in run.err


def test_a_package_that_chooses_another_backend_is_told_where_to_say_it(world: World):
    (world.folder / "packages").mkdir()
    (world.folder / "packages" / "settings.py").write_text("import os\nos.environ['KERAS_BACKEND'] = 'torch'\n")
    run = start(world, "sys.path.append('packages')\nimport settings\nimport keras\n")
    assert run.wait() == 1
    assert "the script chose the backend torch while it ran; this run was started for jax" in run.err
    assert "with --backend torch" in run.err


def test_a_worker_that_raises_shows_its_own_frames_alone(world: World):
    run = start(world, "def deep():\n    1 / 0\ndeep()\n")
    assert run.wait() == 1
    assert "ZeroDivisionError" in run.err
    assert "prefork.py" not in run.err
    assert "worker.py" not in run.err
