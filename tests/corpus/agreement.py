"""Whether two runs of a script came to the same, judged by what they leave to their user: printed lines and files."""

from __future__ import annotations

import io
import math
import re
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

ROUNDING = (5e-3, 5e-4)  # relative, absolute: what printed digits and sums in another order leave
TREND = (0.35, 0.15)  # of the last numbers only

_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?(?![\w])|(?<!\w)[-+]?(?:nan|inf)(?!\w)")
_CONTROL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PROGRESS = re.compile(r"^\s*\d+/(?:\d+|Unknown)\s+[━\s]*")
_TIME = re.compile(r"\b[\d.]+\s?(?:ms|us|s|min|h|seconds|minutes)(?:/step|/epoch)?\b|\d\d?:\d\d(?::\d\d)?")
_TEXT = {".csv", ".txt", ".json", ".log", ".md"}


@dataclass(frozen=True)
class Line:
    """A printed line: its words, with # for each number, and the numbers."""

    words: str
    numbers: tuple[float, ...]


def lines(printed: str) -> list[Line]:
    """What was printed, without times, colours and all but the last state of each progress bar."""
    texts = _CONTROL.sub("", printed.replace("\b", "").replace("\r", "\n")).splitlines()
    return [_line(text) for text in _without_progress(texts) if text.strip() and not text.startswith("shoal: ")]


def _without_progress(texts: Iterable[str]) -> Iterator[str]:
    """Of neighbouring states of progress bars the last that tells a metric."""
    last = ""
    for text in texts:
        if _PROGRESS.match(text):
            metrics = _PROGRESS.sub("", text)
            last = metrics if " - " in metrics else last
            continue
        if last and text.strip():
            yield last
            last = ""
        yield text
    if last:
        yield last


def _line(text: str) -> Line:
    text = _TIME.sub("", text)
    return Line(" ".join(_NUMBER.sub("#", text).split()), tuple(float(number) for number in _NUMBER.findall(text)))


def near(ours: Iterable[float], theirs: Iterable[float], tolerance: tuple[float, float]) -> bool:
    a, b = np.asarray(list(ours), "float64"), np.asarray(list(theirs), "float64")
    return a.shape == b.shape and bool(np.allclose(a, b, *tolerance, equal_nan=True))


def differences(plain: str, shoal: str) -> str:
    """Why the output of two runs is not the same to rounding; empty if it is."""
    ours, theirs = lines(shoal), lines(plain)
    for mine, other in zip(ours, theirs, strict=False):
        if mine.words != other.words:
            return f"printed {mine.words!r}, plain {other.words!r}"
        if not near(mine.numbers, other.numbers, ROUNDING):
            return f"{mine.words!r}: {_short(mine.numbers)}, plain {_short(other.numbers)}"
    if len(ours) != len(theirs):
        return f"{len(ours)} lines printed, plain {len(theirs)}"
    return ""


def other_trend(plain: str, shoal: str) -> str:
    """Why the last numbers of each kind of line are not near each other; empty if they are."""
    ours, theirs = ({line.words: line.numbers for line in lines(text)} for text in (shoal, plain))
    common = [words for words in theirs if words in ours and theirs[words]]
    if not common and any(theirs.values()):
        return "no line with numbers in common"
    for words in common:
        if not near(ours[words], theirs[words], TREND):
            return f"{words!r}: {_short(ours[words])}, plain {_short(theirs[words])}"
    return ""


def _short(numbers: Iterable[float]) -> str:
    return " ".join(f"{number:.4g}" for number in numbers)


# Files ---------------------------------------------------------------------------------------------------


def other_files(plain: Path, shoal: Path, contents: bool) -> str:
    """Why two folders do not hold the same; empty if they do. Numbers in names do not matter."""
    ours, theirs = _files(shoal), _files(plain)
    if ours.keys() != theirs.keys():
        return f"files: {sorted(ours.keys() ^ theirs.keys())} on one side only"
    if not contents:
        return ""
    for name in sorted(theirs):
        if len(ours[name]) != len(theirs[name]):
            return f"{len(ours[name])} files {name}, plain {len(theirs[name])}"
        for mine, other in zip(ours[name], theirs[name], strict=True):
            why = _other_contents(mine, other)
            if why:
                return f"{mine.name}: {why}"
    return ""


def _files(folder: Path) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            name = re.sub(r"\d+", "#", str(path.relative_to(folder)))
            found.setdefault("events" if "tfevents" in name else name, []).append(path)
    return found


def _other_contents(mine: Path, other: Path) -> str:
    if mine.suffix in _TEXT:
        return differences(other.read_text(), mine.read_text())
    ours, theirs = _arrays(mine), _arrays(other)
    if ours.keys() != theirs.keys():
        return f"{sorted(ours.keys() ^ theirs.keys())} on one side only"
    for name, array in theirs.items():
        if array.dtype.kind == "f" and not (
            ours[name].shape == array.shape and np.allclose(ours[name], array, *ROUNDING, equal_nan=True)
        ):
            return f"{name} differs by up to {_most(ours[name], array):.3g}"
    return ""


def _most(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.max(np.abs(ours.astype("float64") - theirs))) if ours.shape == theirs.shape else math.inf


def _arrays(path: Path) -> dict[str, np.ndarray]:
    if path.suffix == ".npy":
        return {"array": np.load(path)}
    if path.suffix == ".npz":
        with np.load(path) as loaded:
            return dict(loaded)
    if path.suffix == ".h5":
        return _of_h5(path)
    if path.suffix == ".keras":
        with zipfile.ZipFile(path) as archive:
            return _of_h5(io.BytesIO(archive.read("model.weights.h5")))
    return {}


def _of_h5(file: Path | io.BytesIO) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}

    def keep(name: str, node: object) -> None:
        if isinstance(node, h5py.Dataset):
            found[name] = node[()]

    with h5py.File(file, "r") as opened:
        opened.visititems(keep)
    return found
