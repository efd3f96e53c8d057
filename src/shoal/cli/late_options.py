"""Options of `shoal run` that came after the script, where they are the script's: perhaps meant for us."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def late_options(words: Sequence[str], known: Mapping[str, bool], text: str) -> tuple[str, ...]:
    """Those among the script's words that we know, with their values.

    `known`: our options, and whether a value follows. An option that the script's text names is its own.
    """
    found: list[str] = []
    rest = list(words)
    while rest and rest[0] != "--":
        word = rest.pop(0)
        option, equals, _ = word.partition("=")
        if option not in known or f'"{option}"' in text or f"'{option}'" in text:
            continue
        found.append(word)
        if known[option] and not equals and rest:
            found.append(rest.pop(0))
    return tuple(found)
