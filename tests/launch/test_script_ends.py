"""However a script ends, its run ends as `python script` does: the same exit code, and what it says is said once."""

from __future__ import annotations

import os
import pty
import re
import signal

import pytest

from .launched import World, eventually

EXITS = {
    "sys.exit(3)": "",
    "sys.exit('no such data')": "no such data\n",
    "os._exit(4)": "",
    "def inner(): raise ValueError('bad pixel')\ninner()": "ValueError: bad pixel\n",
    "raise KeyboardInterrupt": "KeyboardInterrupt\n",
    "def broken(:": "SyntaxError: invalid syntax\n",
}


@pytest.mark.parametrize(("text", "said"), EXITS.items())
@pytest.mark.parametrize("workers", [2, 1])
def test_the_exit_code_and_what_is_said_are_pythons(world: World, text: str, said: str, workers: int):
    plain = world.python(f"import os, sys\nprint('hello')\n{text}\n")
    run = world.run(f"print('hello')\n{text}\n", "-n", workers)
    code = run.wait()
    assert code == (plain.returncode if plain.returncode >= 0 else 128 - plain.returncode), run.err
    assert run.out == plain.stdout
    assert plain.stderr.endswith(said)
    assert run.err.count("Traceback") == plain.stderr.count("Traceback")
    assert [run.err.splitlines().count(line) for line in said.splitlines()] == [1] * bool(said)
    assert run.err.count("the run ended: ") == 1
    assert "going on" not in run.err
    assert "runpy" not in run.err
    assert "shoal/launch" not in run.err


def test_a_refusal_says_its_useful_line_and_where_in_the_script_it_was_asked_for(world: World):
    helper = "from shoal.wire.addresses import parse\ndef where(): return parse('pigeon')\n"
    (world.folder / "helper.py").write_text(helper)
    run = world.run("import helper\nhelper.where()", "-n", 2)
    assert run.wait() == 1
    opening, space, reason, about, where = run.err.strip().splitlines()
    assert not space
    assert reason.startswith("shoal: the run ended: helper.py:2: ")
    assert "pigeon" in reason
    who = re.fullmatch(r"  UsageError on (worker-[01]) at step 0 .*", about)  # who was first
    assert who is not None, about
    assert where == f"  The whole traceback is in {opening.partition('logs in ')[2]}/{who[1]}.log"
    assert "wire/addresses.py" in run.log(who[1])


def test_the_chief_has_the_terminals_input_and_the_others_have_none(world: World):
    terminal, its_end = pty.openpty()  # a real terminal, of another session than the workers'
    try:
        os.write(terminal, b"hello\n")
        text = "try: print('you said', input())\nexcept EOFError: mark('no input')"
        run = world.run(text, "-n", 2, stdin=its_end)
        assert run.wait() == 0, run.err
        assert run.out == "you said hello\n"
        assert world.marks("no input") == [""]
    finally:
        os.close(terminal)
        os.close(its_end)


def test_a_coordinator_that_was_stopped_is_not_said_to_be_killed(world: World):
    run = world.run("mark('up')\nuntil('go')", "-n", 2, "--timeout", 0.5)
    eventually(lambda: len(world.marks("up")) == 2, "both are up")
    os.kill(run.pid("coordinator"), signal.SIGSTOP)
    eventually(lambda: "starting it again" in run.err, "another one is started")
    world.tell("go")
    assert run.wait() == 0, run.err
    assert "has been stopped for" in run.err
    assert "SIGKILL" not in run.err
