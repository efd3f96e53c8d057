"""The workers' speeds as people write them: 1,1,0.5."""

from __future__ import annotations

from math import inf

from shoal.errors import UsageError


def speeds_of(text: str, workers: int) -> tuple[float, ...]:
    """Of so many workers, relative to each other. UsageError for anything else."""
    try:
        found = tuple(float(word) for word in text.split(","))
    except ValueError:
        found = ()
    if len(found) != workers or not all(0.0 < speed < inf for speed in found):
        raise UsageError(f"--speeds {text}: expected {workers} numbers above 0, one for each worker, as 1,1,0.5.")
    return found
