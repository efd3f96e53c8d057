"""Options whose value may be left out, before a word that is no option. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

# By option: what stands for no value, and what a value looks like.
_OPTIONAL = {"--dashboard": ("0", re.compile(r"\d+")), "--ray": ("auto", re.compile(r"auto|\S+:\d+"))}


def fill_in_port(words: Sequence[str], takes_value: Collection[str]) -> list[str]:
    """The words, with a value after each of these options that has none. What follows the script is left as it is."""
    filled, at = list(words), 0
    while at < len(filled) and filled[at].startswith("-") and filled[at] != "--":
        word, following = filled[at], filled[at + 1 : at + 2]
        default, value = _OPTIONAL.get(word, ("", re.compile(".*")))
        if default and not (following and value.fullmatch(following[0])):
            filled[at] = f"{word}={default}"
            at += 1
        else:
            at += 2 if word in takes_value else 1
    return filled
