"""How much, for people."""

from __future__ import annotations


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def amount(nbytes: float) -> str:
    """Bytes, for people."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if nbytes < 1000 or unit == "GB":
            break
        nbytes /= 1000
    return f"{nbytes:.0f} {unit}" if nbytes >= 10 or unit == "bytes" else f"{nbytes:.1f} {unit}"


def duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms" if seconds >= 0.01 else _small(seconds)


def _small(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms"
