"""Which nodes of a Ray cluster get how many workers. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from shoal.errors import UsageError


class RayNode(msgspec.Struct, frozen=True):
    """A node that is alive, and what Ray may give away of it."""

    id: str
    address: str
    cpus: int
    gpus: int = 0


class RayBundle(msgspec.Struct, frozen=True):
    """What a run takes of a node."""

    node: RayNode
    name: str  # for people, and for logs
    workers: int
    cpus: int
    gpus: int


def choose_bundles(nodes: Sequence[RayNode], workers: int | None, threads: int | None) -> tuple[RayBundle, ...]:
    """One for each node that is used. Workers go where most processors are left for each; without a number of workers
    every node has one. UsageError if there is no room.
    """
    each = max(1, threads or 1)
    usable = sorted((node for node in nodes if node.cpus >= each), key=lambda node: (node.address, node.id))
    room = sum(node.cpus // each for node in usable)
    wanted = len(usable) if workers is None else workers
    if not usable or wanted > room:
        listed = ", ".join(f"{node.address} has {node.cpus}" for node in nodes) or "it has no node"
        raise UsageError(
            f"-n {wanted}: the Ray cluster has room for {room} workers of {each} "
            f"thread{'s' if each > 1 else ''}: of processors, {listed}. Use fewer workers or threads, or add nodes."
        )
    if wanted < 1:
        raise UsageError(f"-n {wanted}: expected at least 1 worker")
    held = [0 if workers is not None else 1] * len(usable)
    while sum(held) < wanted:
        open_to = [i for i, node in enumerate(usable) if node.cpus >= each * (held[i] + 1)]
        held[max(open_to, key=lambda i: (usable[i].cpus / (held[i] + 1), -held[i], -i))] += 1
    return tuple(
        RayBundle(
            node,
            node.address,
            count,
            count * each if threads else node.cpus,
            node.gpus // count * count,
        )
        for node, count in zip(usable, held, strict=True)
        if count
    )


def placed(bundles: Sequence[RayBundle], where: Mapping[int, str], nodes: Sequence[RayNode]) -> tuple[RayBundle, ...]:
    """The bundles on the nodes that Ray has chosen for them, by number; each with a name that no other has."""
    by_id = {node.id: node for node in nodes}
    found = [by_id[where[number]] for number in range(len(bundles))]
    addresses = [node.address for node in found]
    return tuple(
        msgspec.structs.replace(
            bundle,
            node=node,
            name=node.address if addresses.count(node.address) == 1 else f"{node.address}-{node.id[:8]}",
        )
        for bundle, node in zip(bundles, found, strict=True)
    )
