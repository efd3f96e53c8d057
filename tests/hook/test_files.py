"""What a script does with files has the result that it has with plain Python, although every worker runs it."""

from __future__ import annotations

import re
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from .runs import Trainings, succeeded

Tree = dict[str, bytes | None]
INEXACT = (".keras", ".h5", ".zip", ".npz", ".gz", ".pkl", "own.csv", "was-temporary")  # times and roundings in them
PER_EPOCH = ("logs/epochs.txt", "own-epochs", "reported", "orbax")


class Server:
    """Serves a table, and counts how often."""

    def __init__(self) -> None:
        self.served = 0
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.served += 1
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"a,b\n1,2\n")

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._http = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}/table.csv"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture(scope="module")
def expected(trainings: Trainings, server: Server) -> Tree:
    """What plain Python leaves."""
    folder = trainings.folder / "plain"
    succeeded(trainings.plain("jax", "files.py", folder, server.url))
    return tree(folder)


def tree(folder: Path) -> Tree:
    """All files, and what is in them where that is the same every time."""
    return {
        re.sub(r"\d{10,}", "#", str(path.relative_to(folder))): None
        if path.name.endswith(INEXACT)
        else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def nothing_stays_behind(result: subprocess.CompletedProcess[str]) -> bool:
    run = re.findall(r"shoal: run (\S+)", result.stderr)
    return len(run) == 1 and not list(Path(tempfile.gettempdir()).glob(f"shoal-{run[0]}-*"))


def test_files_are_those_of_plain_python(trainings: Trainings, server: Server, expected: Tree) -> None:
    folder = trainings.folder / "three"
    served = server.served
    result = trainings.shoal("jax", "-n 3", "files.py", folder, server.url)
    succeeded(result)
    assert tree(folder) == expected
    assert server.served - served == served  # as often as by plain Python
    assert nothing_stays_behind(result)


@pytest.mark.parametrize(
    "deaths",
    [
        ("worker-0:data", "worker-1:epoch1", "worker-2:trained"),
        ("worker-0:fetched", "worker-1:result"),
    ],
)
def test_also_when_chiefs_die_in_the_middle_of_a_file(
    trainings: Trainings, server: Server, expected: Tree, deaths: tuple[str, ...]
) -> None:
    folder = trainings.folder / deaths[0]
    result = trainings.shoal("jax", "-n 4", "files.py", folder, server.url, *deaths)
    succeeded(result)
    for death in deaths:
        assert f"{death.partition(':')[0]} " in result.stderr
    # Who dies in a callback may take its line for that epoch along.
    assert without(PER_EPOCH, tree(folder)) == without(PER_EPOCH, expected)
    assert nothing_stays_behind(result)


def without(names: tuple[str, ...], found: Tree) -> Tree:
    return {name: content for name, content in found.items() if name not in names}
