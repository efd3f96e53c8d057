"""Amounts of memory as people write them: 800M, 2G, 1.5GiB."""

from __future__ import annotations

import re

from shoal.errors import UsageError

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30}


def nbytes(option: str, text: str) -> int:
    """UsageError names the option."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?|[KMG]I)B?", text.strip().upper())
    if match is None or not float(match[1]):
        raise UsageError(f"{option} {text}: expected an amount of memory, such as 800M, 2G or 1.5GiB.")
    return int(float(match[1]) * _UNITS[match[2]])
