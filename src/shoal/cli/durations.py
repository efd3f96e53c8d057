"""Times as people write them: 90s, 10m, 2h, 1d."""

from __future__ import annotations

import re

from shoal.errors import UsageError

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(option: str, text: str) -> float:
    """UsageError names the option."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if match is None:
        raise UsageError(f"{option} {text}: expected a time such as 90s, 10m, 2h or 1d.")
    return float(match[1]) * _UNITS[match[2]]
