"""An option whose value may be left out, before a word that is no option. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

_OPTION, _ANY = "--dashboard", "0"


def fill_in_port(words: Sequence[str], takes_value: Collection[str]) -> list[str]:
    """The words, with a port after each `--dashboard` that has none. What follows the script is left as it is."""
    filled, at = list(words), 0
    while at < len(filled) and filled[at].startswith("-") and filled[at] != "--":
        word, following = filled[at], filled[at + 1 : at + 2]
        if word == _OPTION and not (following and following[0].isdecimal()):
            filled[at] = f"{_OPTION}={_ANY}"
            at += 1
        else:
            at += 2 if word in takes_value else 1
    return filled
