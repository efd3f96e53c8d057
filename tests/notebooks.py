"""Notebooks, run in a real Jupyter kernel.

    notebook = Notebook(environ, folder)
    with notebook:
        shown = notebook.run("import keras", "keras.__version__")

`run` runs cells one after the other and gives what the last one showed; an error in a cell is raised. For a file, such
as one of the corpus, there is `run_notebook(path, folder)`.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

CELL = 120  # seconds for one cell; only a broken one takes so long


class Shown:
    """What a cell has shown."""

    def __init__(self, outputs: list[Any]) -> None:
        self.out = "".join(output["text"] for output in outputs if output.get("name") == "stdout")
        self.err = "".join(output["text"] for output in outputs if output.get("name") == "stderr")
        results = [output["data"]["text/plain"] for output in outputs if output["output_type"] == "execute_result"]
        self.value = results[-1] if results else None  # of its last line, as text
        errors = [output for output in outputs if output["output_type"] == "error"]
        self.error = f"{errors[0]['ename']}: {errors[0]['evalue']}" if errors else None


class Notebook:
    """A kernel of this Python, and the cells that it runs."""

    def __init__(self, environ: Mapping[str, str], folder: Path) -> None:
        self._environ = dict(environ)
        resources = {"metadata": {"path": str(folder)}}
        self._client = NotebookClient(nbformat.v4.new_notebook(), timeout=CELL, resources=resources)
        self._client.km = self._client.create_kernel_manager()
        self._client.km.transport, self._client.km.ip = "ipc", str(folder / "k")  # no ports
        self._loop = asyncio.new_event_loop()

    def __enter__(self) -> Notebook:
        self._do(self._client.async_start_new_kernel(env=self._environ, cwd=self._path))
        self._do(self._client.async_start_new_kernel_client())
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._do(self._client._async_cleanup_kernel())
        finally:
            self._loop.close()

    def run(self, *cells: str) -> Shown:
        """What the last cell showed. CellExecutionError if one raised."""
        shown = Shown([])
        for text in cells:
            shown = self.try_(dedent(text))
            if shown.error is not None:
                raise CellExecutionError.from_cell_and_msg(self._cells[-1], {"ename": "", "evalue": shown.error})
        return shown

    def try_(self, text: str, interrupt_at: Path | None = None) -> Shown:
        """What a cell showed, its error too. It is interrupted as soon as there is such a file."""
        cell = nbformat.v4.new_code_cell(text)
        self._cells.append(cell)
        self._do(self._execute(cell, interrupt_at))
        return Shown(cell["outputs"])

    async def _execute(self, cell: Any, interrupt_at: Path | None) -> None:
        interrupting = asyncio.ensure_future(self._interrupt(interrupt_at)) if interrupt_at else None
        try:
            await self._client.async_execute_cell(cell, len(self._cells) - 1)
        except CellExecutionError:
            pass  # it is among the outputs
        finally:
            if interrupting is not None:
                interrupting.cancel()

    async def _interrupt(self, at: Path) -> None:
        while not at.exists():
            await asyncio.sleep(0.02)
        await self._client.km.interrupt_kernel()

    @property
    def _cells(self) -> list[Any]:
        cells: list[Any] = self._client.nb["cells"]
        return cells

    @property
    def _path(self) -> str:
        path: str = self._client.resources["metadata"]["path"]
        return path

    def _do(self, doing: Any) -> Any:
        return self._loop.run_until_complete(doing)


def run_notebook(path: Path, folder: Path, **environ: str) -> str:
    """All cells of a notebook's file, in a folder that is its current one; what they wrote to standard output."""
    with Notebook({**environ_for(folder), **environ}, folder) as notebook:
        return "".join(notebook.run(text).out for text in cells_of(path))


def cells_of(path: Path) -> list[str]:
    """The code of a notebook's file."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def environ_for(folder: Path) -> dict[str, str]:
    """Where a kernel writes nothing but into a folder."""
    return {**os.environ, "IPYTHONDIR": str(folder / "ipython"), "JUPYTER_RUNTIME_DIR": str(folder / "jupyter")}
