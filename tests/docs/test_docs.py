"""The documentation is true: its code runs, its commands are understood, what it names exists."""

from __future__ import annotations

import ast
import builtins
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import shoal
from shoal import cli
from shoal.cli import checkpoint as checkpoint_verb
from shoal.cli import run as run_verb
from shoal.launch import local

from .pages import PAGES, ROOT, SOURCE, Page, has_symbol, read, slug, source_classes, source_strings

LIMIT = 100.0  # seconds for one page's code; only a broken one takes so long
READ = [read(path) for path in PAGES]
each_page = pytest.mark.parametrize("page", READ, ids=lambda page: page.name)


@pytest.fixture
def environ(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders of this test's own, and no TensorFlow, which Keras would import on any backend."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "tensorflow.py").write_text("raise ImportError('not needed here, and slow to start')\n")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(hidden), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "XDG_RUNTIME_DIR": str(tmp_path_factory.mktemp("r")),  # short: a unix socket's path holds 107 bytes
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }


def shoal_runs(words: list[str], folder: Path, environ: dict[str, str]) -> None:
    python_runs(["-m", "shoal", *words], folder, environ)


def python_runs(words: list[str], folder: Path, environ: dict[str, str]) -> None:
    command = [sys.executable, *words]
    result = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=LIMIT)
    assert result.returncode == 0, f"{result.stdout[-2000:]}\n{result.stderr[-4000:]}"


@pytest.mark.parametrize("page", [page for page in READ if page.script()], ids=lambda page: page.name)
def test_the_python_of_a_page_runs_on_two_workers(page: Page, tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "page.py").write_text(page.script())
    served = ["--strategy", "ps", "--servers", "1"] if "ParameterServer" in page.script() else []
    shoal_runs(["run", "-n", "2", "--threads", "1", "--backend", "torch", *served, "page.py"], tmp_path, environ)


@pytest.mark.parametrize("page", [page for page in READ if page.files()], ids=lambda page: page.name)
def test_commands_that_are_to_be_run_do_run(page: Page, tmp_path: Path, environ: dict[str, str]) -> None:
    for name, code in page.files().items():
        (tmp_path / name).write_text(code)
    commands = [words for block in page.blocks if block.directive == "run" for words in block.commands()]
    assert commands
    runs = {"shoal": shoal_runs, "python": python_runs}
    for words in commands:
        runs[words[0]](words[1:], tmp_path, environ)


@each_page
def test_commands_are_understood(page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local, "launch", lambda plan, environ, claimed: local.Ended(True, 0, ""))
    shells = [block for block in page.blocks if block.language in ("bash", "console", "sh") and block.is_checked]
    for words in (words for block in shells for words in block.commands()):
        match words:
            case ["shoal", "run", *rest]:
                make_script(rest)
                result = CliRunner().invoke(cli.main, ["run", *rest])
                assert result.exit_code == 0, f"{words}: {result.output}"
            case ["shoal", "checkpoint", verb, *rest]:
                checkpoint_verb.checkpoint.commands[verb].make_context(verb, rest)
            case ["shoal", verb, *rest]:
                verb_of(verb).make_context(verb, rest)
            case ["python", script]:
                assert script in page.files()
            case ["make", target]:
                assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), words
            case ["pip", "install", "-e", what]:
                extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
                assert set(re.findall(r"\w+", what)) <= extras.keys(), words
            case _:
                pytest.fail(f"{page.name}: nobody checks {words}")


def verb_of(name: str) -> click.Command:
    """A verb of the command line."""
    verb = cli.main.get_command(click.Context(cli.main), name)
    assert verb is not None, name
    return verb


def make_script(words: list[str]) -> None:
    """The script, or module, that a `shoal run` names."""
    given = run_verb.run.make_context("run", list(words)).params
    name = given["words"][0]
    if given["is_module"]:
        *packages, module = name.split(".")
        folder = Path(*packages)
        folder.mkdir(parents=True, exist_ok=True)
        for parent in (folder, *list(folder.parents)[:-1]):
            (parent / "__init__.py").touch()
        (folder / f"{module}.py").touch()
    else:
        Path(name).touch()


@each_page
def test_links_lead_somewhere(page: Page) -> None:
    for link in page.links():
        target, _, anchor = link.partition("#")
        path = (page.path.parent / target).resolve() if target else page.path
        assert path.exists(), link
        assert path.is_relative_to(ROOT), link
        if anchor:
            assert anchor in map(slug, read(path).headings()), link


@each_page
def test_files_and_functions_that_are_named_exist(page: Page) -> None:
    for code in page.codes():
        found = re.fullmatch(r"([\w./*-]+?)(?:::?([\w.]+))?", code)
        if found is None:
            continue
        name, symbol = found.groups()
        if symbol is not None and name.endswith(".py"):
            assert has_symbol(place(name), symbol), code
        elif re.match(r"(src|tests|docs|examples|bench)/", name) or (name.endswith(".py") and "/" in name):
            assert place(name).exists(), code


def test_guarantees_say_which_of_their_tests_only_the_full_suite_runs() -> None:
    prose = read(ROOT / "docs/guarantees.md").prose
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`( \(full\))?", prose)
    assert named
    wrong = [f"{file}::{name}" for file, name, said in named if is_full(ROOT / file, name) != bool(said)]
    assert not wrong


def is_full(file: Path, name: str) -> bool:
    """Whether all cases of this test are marked so."""
    functions = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)]
    function = next(one for one in functions if one.name == name)
    return "pytest.mark.full" in map(ast.unparse, function.decorator_list)


@pytest.mark.parametrize("page", [page for page in READ if "journey" in page.name], ids=lambda page: page.name)
def test_classes_that_a_journey_names_exist(page: Page) -> None:
    real = {*source_classes(), *vars(builtins)}
    named = {found[1] for code in page.codes() if (found := re.fullmatch(r"([A-Z]\w*[a-z]\w*)(?:[.(].*)?", code))}
    assert named, page.name
    assert named <= real


def place(name: str) -> Path:
    """Where a file is that a page names: from the root, or from src/shoal."""
    return ROOT / name if (ROOT / name).exists() else SOURCE / name


@each_page
def test_options_that_are_named_are_real(page: Page) -> None:
    verbs = map(verb_of, cli.main.list_commands(click.Context(cli.main)))
    real = {option for verb in verbs for param in verb.params for option in (*param.opts, *param.secondary_opts)}
    named = {option for code in page.codes() for option in re.findall(r"(?:^|\s)(--[a-z][a-z-]*)", code)}
    assert named <= real


def test_the_guide_lists_every_option_and_every_public_name() -> None:
    guide = read(ROOT / "docs/guide.md")
    listed = {code.split(" ")[0] for code in guide.codes()}
    for param in run_verb.run.params:
        assert param.param_type_name == "argument" or listed.intersection(param.opts), param.name
    documented = {code.removeprefix("shoal.").partition("(")[0] for code in guide.codes() if code.startswith("shoal.")}
    assert documented >= set(shoal.__all__)


def test_messages_that_troubleshooting_quotes_are_in_the_source() -> None:
    known = source_strings()
    quoted = [heading.strip("`") for heading in read(ROOT / "docs/troubleshooting.md").headings() if "`" in heading]
    assert len(quoted) > 20
    for message in quoted:
        for part in filter(None, (part.strip() for part in message.split("…"))):
            assert any(part in text for text in known), f"{message!r}: nothing says {part!r}"
