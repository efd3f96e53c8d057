"""What a mesh makes of a model's memory, and what is said of it before the first step. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.observe.amounts import amount
from shoal.strategies.mesh.layouts import Layout
from shoal.strategies.mesh.shape import Mesh

_ROOM = (
    0.4  # of a device's memory that weights, gradients and optimizer state may take whole; activations need the rest
)
_NAMED = 3  # tensors of one reason that are named


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes of a model: in all, and on each device."""

    weights: int
    weights_each: int
    optimizer: int = 0
    optimizer_each: int = 0

    @property
    def share(self) -> float:
        return (self.weights_each + self.optimizer_each) / max(1, self.weights + self.optimizer)


def wants_fsdp(asked: bool | None, state: int, limit: int | None) -> bool:
    """Whether weights are split over the batch axis: as the user said, or because `state` (bytes of weights, gradients
    and optimizer, not split so) is too much for a device that has `limit` bytes.
    """
    return asked if asked is not None else limit is not None and state > _ROOM * limit


def told(mesh: Mesh, devices: str, memory: DeviceMemory, layouts: Sequence[Layout], fsdp: bool) -> list[str]:
    """What is split and how, what is whole and why: a first line, and details."""
    split = [layout for layout in layouts if layout.is_split]
    whole = [layout for layout in layouts if not layout.is_split]
    parts = [f"{amount(memory.weights_each)} of {amount(memory.weights)} of weights"]
    if memory.optimizer:
        parts.append(f"{amount(memory.optimizer_each)} of {amount(memory.optimizer)} of optimizer state")
    shape = str(Mesh(mesh.batch, mesh.model, fsdp or None))
    head = f"mesh {shape} of {devices}: each device holds {' and '.join(parts)} ({memory.share:.1%})"
    return [head, *_grouped("split", split), *(_grouped("whole on every device", whole) if split else [])]


def _grouped(title: str, layouts: Sequence[Layout]) -> list[str]:
    """By reason, the largest first."""
    sizes: Counter[str] = Counter()
    for layout in layouts:
        sizes[layout.why] += layout.tensor.nbytes
    lines = []
    for why, nbytes in sizes.most_common():
        named = [one.tensor.path for one in layouts if one.why == why]
        more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
        lines.append(f"{title} ({why}): {amount(nbytes)}: {', '.join(named[:_NAMED])}{more}")
    return lines
