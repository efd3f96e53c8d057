"""`shoal.ray.run`: a function on workers of a Ray cluster, from Python. For a script there is `shoal run --ray`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from shoal.checkpoint.addresses import Place, place_of
from shoal.checkpoint.read import newest_whole
from shoal.errors import UsageError
from shoal.launch.from_python import run_by_ray
from shoal.launch.remote.ray_reservation import AUTO


class RayResult(NamedTuple):
    """What a run has left."""

    value: Any  # what the function returned on the chief; a History comes as the dict of its figures
    checkpoint: Place | None  # the newest whole one, if the run was told to write some


def run(
    function: Callable[..., Any],
    n: int | None = None,
    args: Sequence[Any] | Mapping[str, Any] = (),
    *,
    address: str = AUTO,
    folder: str | Path = ".",
    **options: Any,
) -> RayResult:
    """Call `function` on `n` workers on the nodes of a Ray cluster; without `n`, on one worker of each node.

    `args` and `options` are as in `shoal.run`. `address`: of the cluster; by default the one that RAY_ADDRESS names, or
    that this host is a part of. `folder`: one that all nodes see under this path, for what goes there and back; it is
    left as it was found.

    RunFailed, with the run's last words, if the run fails; UsageError if something of this can't be used.
    """
    shared = Path(folder).absolute()
    if not shared.is_dir():
        raise UsageError(
            f"folder={str(folder)!r}: there is no such folder. Name one that all nodes of the cluster see."
        )
    value = run_by_ray(function, n, args, address, shared, options)
    saved = options.get("checkpoint")
    return RayResult(value, newest_whole(place_of(str(saved)))[0] if saved is not None else None)
