"""How many processes a machine can bear. A slip of the finger must not take it down."""

from __future__ import annotations

from collections.abc import Callable

from shoal.errors import UsageError

_PER_CORE = 32
_MEMORY = 128 << 20  # bytes that a worker takes at the very least, with a backend and no model
_ALWAYS_PER_CORE = 2  # so many are started whatever the system says of its memory: caches make that a guess


def check_processes(asked: str, processes: int, cores: int, free: Callable[[], int] | None = None) -> None:
    """UsageError if so many are too many. `asked`: the option that asks for them; `free`: bytes of memory."""
    if processes <= _ALWAYS_PER_CORE * cores:
        return
    memory = (free or _free)()
    most = max(_ALWAYS_PER_CORE * cores, min(_PER_CORE * cores, memory // _MEMORY))
    if processes > most:
        raise UsageError(
            f"{asked}: that would start {processes:,} processes on {cores} cores with {memory / 2**30:.1f} GiB of free "
            f"memory; expected at most {most} here. More workers than cores do not train faster: use about as many as "
            "cores, and other machines with `shoal join`."
        )


def _free() -> int:
    from shoal.wire.available import available_memory  # which the command line can do without

    return available_memory()
