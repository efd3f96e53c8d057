"""The accelerators of a host, from what its own tools and its environment say. Pure."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

_GPU = re.compile(r"GPU (\d+): (.+?) \(UUID: (GPU-[\w-]+)\)")
_MIG = re.compile(r"\s+MIG (\S+)\s+Device\s+\d+: \(UUID: (MIG-[\w/-]+)\)")
_CARD = re.compile(r"card(\d+)")


class DeviceKind(Enum):
    """Whose it is; the value is what the user calls it."""

    CUDA = "GPU"
    ROCM = "AMD GPU"
    TPU = "TPU chip"
    NONE = "accelerator"


# What hides all others from a process. On ROCm the lower layer has one too (ROCR_VISIBLE_DEVICES), whose numbers these
# would then count in; setting one of them is enough, and setting both is a trap.
VISIBLE = {
    DeviceKind.CUDA: "CUDA_VISIBLE_DEVICES",
    DeviceKind.ROCM: "HIP_VISIBLE_DEVICES",
    DeviceKind.TPU: "TPU_VISIBLE_CHIPS",
}


@dataclass(frozen=True, slots=True)
class Inventory:
    """What there is to give, in the order in which it is given."""

    kind: DeviceKind = DeviceKind.NONE
    ids: tuple[str, ...] = ()  # as the variable that makes them visible has them
    models: tuple[str, ...] = ()  # for people, one for each
    narrowed_by: str = ""  # the variable with which the user has chosen these
    unusable: str = ""  # why the backend can't compute on them, if it can't

    def __str__(self) -> str:
        if not self.ids:
            return "no accelerators"
        models = Counter(self.models or (self.kind.value,) * len(self.ids))
        text = ", ".join(f"{count} {model}" for model, count in models.items())
        return f"{text} (of {self.narrowed_by})" if self.narrowed_by else text

    @property
    def alone(self) -> tuple[str, ...]:
        """Those of which a process can use one at most: parts of a GPU."""
        return tuple(id for id in self.ids if id.startswith("MIG-"))


def from_nvidia(listing: str, environ: Mapping[str, str]) -> Inventory:
    """What `nvidia-smi -L` says. A GPU that is divided (MIG) counts by its parts."""
    found: list[tuple[str, str, str]] = []  # id, uuid, model
    for line in listing.splitlines():
        if gpu := _GPU.match(line):
            found.append((gpu[1], gpu[3], gpu[2]))
        elif (mig := _MIG.match(line)) and found:
            model = found[-1][2].partition(" MIG ")[0]
            if not found[-1][0].startswith("MIG-"):
                found.pop()
            found.append((mig[2], mig[2], f"{model} MIG {mig[1]}"))
    whole = Inventory(DeviceKind.CUDA, tuple(id for id, _, _ in found), tuple(model for _, _, model in found))
    names = {uuid: model for _, uuid, model in found} | {id: model for id, _, model in found}
    return _narrowed(whole, VISIBLE[DeviceKind.CUDA], names, environ)


def from_rocm(listing: str, environ: Mapping[str, str]) -> Inventory:
    """What `rocm-smi --showproductname --json` says."""
    try:
        cards = {
            int(match[1]): facts for name, facts in json.loads(listing).items() if (match := _CARD.fullmatch(name))
        }
    except (ValueError, AttributeError):
        return Inventory()
    names = {str(number): _card(cards[number]) for number in sorted(cards)}
    lower = environ.get("ROCR_VISIBLE_DEVICES")
    if lower is not None:  # the others are not there for anybody, and those that are count from 0
        kept = [names.get(word, "AMD GPU") for word in _words(lower)]
        names = {str(number): model for number, model in enumerate(kept)}
    whole = Inventory(DeviceKind.ROCM, tuple(names), tuple(names.values()))
    narrowed = _narrowed(whole, VISIBLE[DeviceKind.ROCM], names, environ)
    return narrowed if "HIP_VISIBLE_DEVICES" in environ else _narrowed(whole, "CUDA_VISIBLE_DEVICES", names, environ)


def _card(facts: object) -> str:
    known = facts if isinstance(facts, dict) else {}
    return str(known.get("Card Series") or known.get("Card series") or "AMD GPU").strip()


def from_tpu(chips: int, environ: Mapping[str, str]) -> Inventory:
    """`chips`: the device files of TPU chips that the host has."""
    model = f"TPU {environ['TPU_ACCELERATOR_TYPE']} chip" if environ.get("TPU_ACCELERATOR_TYPE") else "TPU chip"
    names = {str(number): model for number in range(chips)}
    whole = Inventory(DeviceKind.TPU, tuple(names), tuple(names.values()))
    older = "TPU_VISIBLE_DEVICES"
    chosen = older if older in environ and VISIBLE[DeviceKind.TPU] not in environ else VISIBLE[DeviceKind.TPU]
    return _narrowed(whole, chosen, names, environ)


def _narrowed(whole: Inventory, variable: str, names: Mapping[str, str], environ: Mapping[str, str]) -> Inventory:
    """What the user has made visible already is all there is. CUDA stops at the first name that it does not know."""
    if variable not in environ:
        return whole
    words = _words(environ[variable])
    if "-1" in words:
        words = words[: words.index("-1")]
    models = tuple(names.get(word, whole.kind.value) for word in words)
    return Inventory(whole.kind if words else DeviceKind.NONE, tuple(words), models, variable)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
