"""Holds a placement group of a Ray cluster for a run, until its standard input ends. See ray_reservation.py."""

from __future__ import annotations

import os
import sys

import msgspec

from shoal.errors import UsageError
from shoal.launch.remote.ray_nodes import RayNode, choose_bundles, placed
from shoal.launch.remote.ray_reservation import RayReserved, RayWish

_READY_WITHIN = 60.0  # seconds


def main() -> None:
    told = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what Ray prints is no answer
    wish = msgspec.json.decode(sys.stdin.buffer.readline(), type=RayWish)
    told.write(msgspec.json.encode(_reserve(wish)) + b"\n")
    told.flush()
    sys.stdin.buffer.read()  # Ray takes the group back when this process ends


def _reserve(wish: RayWish) -> RayReserved:
    import ray
    from ray.util.placement_group import placement_group, placement_group_table

    try:
        ray.init(address=wish.address, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # Ray raises ConnectionError, RuntimeError, ValueError
        return RayReserved(
            refused=f"--ray: no Ray cluster at {wish.address}: {error}. Start one with `ray start --head`, or give its "
            "address, as --ray=10.0.0.1:6379."
        )
    nodes = [
        RayNode(
            node["NodeID"],
            node["NodeManagerAddress"],
            int(node["Resources"].get("CPU", 0)),
            int(node["Resources"].get("GPU", 0)),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]
    try:
        bundles = choose_bundles(nodes, wish.workers, wish.threads)
    except UsageError as error:
        return RayReserved(refused=str(error))
    wanted = [{"CPU": bundle.cpus, **({"GPU": bundle.gpus} if bundle.gpus else {})} for bundle in bundles]
    group = placement_group(wanted, strategy="STRICT_SPREAD")
    if not group.wait(_READY_WITHIN):
        return RayReserved(
            refused=f"--ray: {sum(bundle.cpus for bundle in bundles)} processors on {len(bundles)} nodes are not free; "
            f"waited for {_READY_WITHIN:.0f} s. `ray status` says what others hold."
        )
    return RayReserved(placed(bundles, placement_group_table(group)["bundles_to_node_id"], nodes), group.id.hex())


if __name__ == "__main__":
    main()
