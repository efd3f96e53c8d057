"""The shape of a mesh, as users say it."""

from __future__ import annotations

import re

import msgspec

from shoal.errors import UsageError

BATCH, MODEL = "batch", "model"  # the axes' names
_WORD = re.compile(r"\s*(batch|model)\s*=\s*(\d+)\s*|\s*fsdp\s*")


class Mesh(msgspec.Struct, frozen=True):
    """The devices of each worker as `batch` times `model`; JAX only.

    Rows of a piece are divided among `batch` devices, large weights among `model` devices (tensor parallelism). Without
    `batch`, it is whatever the devices leave. `fsdp`: weights and optimizer state are divided over the batch axis too:
    the same bits, less memory, more traffic. None: only where they would not fit otherwise.
    """

    batch: int | None = None
    model: int = 1
    fsdp: bool | None = None

    def __post_init__(self) -> None:
        for name, size in ((BATCH, self.batch), (MODEL, self.model)):
            if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
                raise UsageError(f"Mesh({name}={size!r}): expected a number of devices, at least 1.")

    @classmethod
    def parse(cls, text: str) -> Mesh:
        """`batch=2,model=2`, `model=4`, `batch=4,fsdp`. UsageError if it is none of the kind."""
        found: dict[str, int | bool] = {}
        for word in text.split(","):
            match = _WORD.fullmatch(word)
            name = (match[1] or "fsdp") if match else ""
            if match is None or name in found:
                raise UsageError(
                    f"--mesh {text}: expected axes and their sizes, as batch=2,model=2, and fsdp to divide weights "
                    "over the batch axis too."
                )
            found[name] = int(match[2]) if match[2] else True
        if not found.get(BATCH, 1) or not found.get(MODEL, 1):
            raise UsageError(f"--mesh {text}: an axis has at least 1 device.")
        return cls(**found)  # type: ignore[arg-type]

    def __str__(self) -> str:
        words = [f"{BATCH}={self.batch}"] if self.batch is not None else []
        words += [f"{MODEL}={self.model}"] if self.model > 1 or not words else []
        return ",".join([*words, *(["fsdp"] if self.fsdp else [])])

    def on(self, devices: int) -> Mesh:
        """This one, of all of a worker's devices. UsageError if they don't make it up."""
        batch = self.batch if self.batch is not None else max(1, devices // self.model)
        if batch * self.model != devices:
            has = f"{devices} device{'s' if devices > 1 else ''}"
            raise UsageError(
                f"a mesh of {self} does not match this worker's devices: it takes {batch * self.model}, and the worker "
                f"has {has}. Choose axes whose product is {devices}, or give each worker other devices: "
                "--devices-per-worker."
            )
        return Mesh(batch, self.model, self.fsdp)

    @property
    def size(self) -> int:
        """Devices, once it is known how many there are."""
        return (self.batch or 1) * self.model
