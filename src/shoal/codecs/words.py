"""The words for codecs, on the command line and in scripts. Pure, and without numpy: the launcher reads them too."""

from __future__ import annotations

from shoal.errors import UsageError

ROUNDED = ("bf16", "int8")


def check_word(word: str, who: str) -> None:
    """UsageError if there is no such codec. `who` is what the word was given to, as the user wrote it."""
    if word not in ROUNDED:
        raise UsageError(f"{who}: there is no codec of that name; there is {' and '.join(ROUNDED)}.")
