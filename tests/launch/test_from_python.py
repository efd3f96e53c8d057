"""`shoal.run`: a function on several workers, from a script, from pytest and from a notebook."""

from __future__ import annotations

import os
import subprocess
import sys
from textwrap import dedent

import numpy as np
import pytest

import shoal
from notebooks import Notebook, environ_for

from .launched import World, eventually


def begun(world: World, text: str, *arguments: str) -> subprocess.Popen[str]:
    """`python script arguments`, in the scene's world."""
    script = world.folder / "call.py"
    script.write_text(dedent(text))
    environ = {**world.environ, "TMPDIR": str(world.folder), "KERAS_BACKEND": "jax"}
    return subprocess.Popen(
        [sys.executable, script, *arguments],
        env=environ,
        cwd=world.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def nothing_is_left(world: World) -> bool:
    return world.is_clean() and not list(world.folder.glob("shoal-run-*"))


def test_a_script_runs_its_functions_on_workers(world: World):
    (world.folder / "beside.py").write_text("def double(x): return 2 * x")
    process = begun(
        world,
        """
        import os, sys
        import numpy as np
        import beside
        import shoal

        LARGE = np.arange(300_000.0)
        WORD = sys.argv[1]

        def work(x, *, power):
            print("on a worker:", WORD, shoal.is_chief())
            return {"x": beside.double(x) ** power, "sum": LARGE.sum(), "large": LARGE + 1, "here": os.getpid()}

        def fail():
            raise KeyError("colour")

        def refuse():
            return object()

        def json():  # as a module that others need is called
            import json
            return json.dumps([1])

        if __name__ == "__main__":
            found = shoal.run(work, n=1, args={"x": np.ones((2, 2)), "power": 3})
            assert (found["x"] == 8).all() and found["sum"] == LARGE.sum() and found["here"] != os.getpid()
            assert (found["large"] == LARGE + 1).all()
            assert shoal.run(json, n=1) == "[1]"
            for function in (fail, refuse):
                try:
                    shoal.run(function, n=1)
                except shoal.RunFailed as error:
                    print(error.code, error)
        """,
        "hello",
    )
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    assert out.startswith("on a worker: hello True\n1 Traceback (most recent call last):\n")
    assert "in fail\n    raise KeyError(\"colour\")\nKeyError: 'colour'\nshoal: the run ended: worker-0 raised" in out
    assert "shoal/launch" not in out
    assert "refuse().py: what refuse() returned is of the type object, which can't travel. What can: numbers" in out
    assert err.count("shoal: run") == 4
    assert nothing_is_left(world)


def test_a_script_without_a_guard_is_told_to_have_one(world: World):
    process = begun(world, "import shoal\ndef work(): pass\nshoal.run(work, n=1)\n")
    _, err = process.communicate(timeout=100)
    assert process.returncode == 1
    assert "call.py:3: shoal.run() was called on a worker" in err
    assert 'Put the call behind `if __name__ == "__main__":`' in err
    assert nothing_is_left(world)


def test_a_caller_that_is_killed_leaves_nobody_behind(world: World):
    process = begun(
        world,
        """
        import os, time
        from pathlib import Path
        import shoal

        def work():
            (Path(os.environ["SCENE"]) / f"up-{shoal.rank()}").touch()
            time.sleep(1000)

        if __name__ == "__main__":
            shoal.run(work, n=2)
        """,
    )
    eventually(lambda: len(list(world.folder.glob("up-*"))) == 2, "both are up")
    process.kill()
    process.communicate(timeout=100)
    eventually(lambda: nothing_is_left(world), "everything is gone")


def sum_of(x: np.ndarray) -> tuple[int, float]:
    return os.getpid(), float(x.sum())


def test_a_test_may_run_a_function_of_its_module(world: World, monkeypatch, capsys):
    for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CACHE_HOME", "SCENE"):
        monkeypatch.setenv(name, world.environ[name])
    pid, total = shoal.run(sum_of, 1, [np.arange(4)], backend="jax", timeout=20)
    assert pid != os.getpid()
    assert total == 6
    assert "1 worker" in capsys.readouterr().err
    with pytest.raises(shoal.UsageError, match="there is no such strategy"):
        shoal.run(sum_of, 1, [np.arange(4)], backend="jax", strategy="magic")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"n": 2, "piece": 4}, "shoal.run\\(\\) has no option piece; did you mean pieces?"),
        ({"n": 2, "address": "127.0.0.1:1"}, "address: workers from other hosts can't join a function's run"),
        ({"n": "many"}, "n='many': expected a number of workers, or a range"),
        ({"n": True}, "n=True: expected a number of workers"),
        ({"n": 2, "args": 3}, "args=3: expected the function's arguments, as a list or as a dict"),
        ({"n": 2, "args": [object()]}, r"args\['args'\]\[0\] is of the type object, which can't travel"),
    ],
)
def test_what_can_not_be_used_is_named_before_anything_starts(given, problem):
    with pytest.raises(shoal.UsageError, match=problem):
        shoal.run(sum_of, **given)


@pytest.mark.timeout(300)
def test_a_notebook_trains_its_functions_on_workers(world: World):
    environ = {**environ_for(world.folder), **world.environ, "TMPDIR": str(world.folder), "KERAS_BACKEND": "jax"}
    with Notebook(environ, world.folder) as notebook:
        notebook.run(
            """
            import os, time
            from pathlib import Path
            import keras, numpy as np
            import shoal
            """,
            """
            x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
            RATE = 0.1

            class Scaled(keras.layers.Layer):
                def call(self, inputs):
                    return inputs * RATE
            """,
            """
            def build():
                keras.utils.set_random_seed(1)
                model = keras.Sequential([keras.layers.Input((4,)), Scaled(), keras.layers.Dense(1)])
                model.compile("sgd", "mse")
                return model

            def train(epochs: int):
                model = build()
                history = model.fit(x, x.sum(axis=1), batch_size=16, epochs=epochs, shuffle=False, verbose=2)
                print("on", shoal.size(), "workers")
                return history.history["loss"], model.get_weights()
            """,
            "losses, weights = shoal.run(train, n=2, args=[2], threads=1)",
            "alone, own = train(2)",  # in the kernel itself
            "np.testing.assert_allclose(losses, alone, rtol=1e-5)",
            "for one, other in zip(weights, own): np.testing.assert_allclose(one, other, atol=1e-5)",
        )
        # A cell that fails, and one that is interrupted.
        notebook.run("def fail():\n    answer = 42\n    return answer / 0")
        shown = notebook.try_("shoal.run(fail, n=1)")
        assert shown.error is not None
        place = 'File "Cell In[8]", line 3, in fail'
        assert shown.error.startswith(f"RunFailed: Traceback (most recent call last):\n  {place}\n")
        assert "the run ended: worker-0 raised ZeroDivisionError" in shown.error
        notebook.run("def wait():\n    (Path(os.environ['SCENE']) / 'up').touch()\n    time.sleep(1000)")
        shown = notebook.try_("shoal.run(wait, n=1)", interrupt_at=world.folder / "up")
        assert shown.error == "KeyboardInterrupt: "
        assert "ending the run" in shown.err
        assert not list(world.folder.glob("shoal-run-*"))
        assert not list((world.runtime / "shoal").iterdir())
        # What it can't send it says.
        notebook.run("model = build()\ndef again(): return model.get_weights()")
        shown = notebook.try_("shoal.run(again, n=2)")
        assert shown.error.startswith("UsageError: again() uses model, which is of the type Sequential of keras.")
