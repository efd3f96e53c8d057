"""What of a process's stacks is worth showing: the script's own lines, in whichever thread they are. Pure."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

_MOST_LINES = 40
_HERE = 2  # calls that are shown whoever they are of: it may be Shoal that hangs
_FOLDED = 3  # calls of Shoal's own in a row, and more
_CALL = re.compile(r'\s*File "(?P<path>.*)", line \d+ in ')
_SHOAL = f"{Path(__file__).parent.parent}/"
_LIBRARIES = (_SHOAL, f"{sysconfig.get_path('stdlib')}/", "<frozen ")
_HEADS = ("Thread", "Current thread")
_BELOW = '  File "<frozen runpy>"'  # whoever runs the script


def shortened(lines: Sequence[str]) -> list[str]:
    """The thread that was asked comes first: it is the script's, as a rule. Then those that run code of the user's."""
    first, *others = sorted(_threads(lines), key=lambda thread: not thread[0].startswith("Current"))
    told = [first, *filter(_is_users, others)]
    shown = [line for thread in told for line in (thread[0], *_folded(thread[1:]))]
    more = len(shown) - _MOST_LINES
    return [f"    {line}" for line in shown[:_MOST_LINES]] + ([f"    … and {more} lines more"] if more > 0 else [])


def _threads(lines: Sequence[str]) -> list[list[str]]:
    """Each with its heading; what stands before the first heading belongs to it."""
    threads: list[list[str]] = []
    for line in filter(str.strip, lines):
        if line.startswith(_HEADS) or not threads:
            threads.append([])
        threads[-1].append(line)
    return threads or [[""]]


def _folded(calls: Sequence[str]) -> Iterator[str]:
    """Without what runs the script, and with Shoal's own calls counted, but for where it stands."""
    until = next((place for place, call in enumerate(calls) if call.startswith(_BELOW)), len(calls))
    yield from calls[: min(until, _HERE)]
    for is_shoals, run in groupby(calls[_HERE:until], _is_shoals):
        found = list(run)
        yield from [f"  … {len(found)} calls within Shoal"] if is_shoals and len(found) >= _FOLDED else found


def _is_users(thread: Sequence[str]) -> bool:
    return any(not _is_librarys(call) for call in thread[1:])


def _is_shoals(call: str) -> bool:
    return _path(call).startswith(_SHOAL)


def _is_librarys(call: str) -> bool:
    path = _path(call)
    return path.startswith(_LIBRARIES) or "/site-packages/" in path


def _path(call: str) -> str:
    found = _CALL.match(call)
    return found["path"] if found is not None else ""
