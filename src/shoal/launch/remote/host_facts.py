"""What must be alike on all hosts of a run, and how a host that differs is named. Pure but for `look_around`."""

from __future__ import annotations

import hashlib
import platform
from importlib import metadata

import msgspec

from shoal.cluster.identity import installed_version, instruction_set
from shoal.launch.script import script_file


class HostFacts(msgspec.Struct, frozen=True):
    """Of one host."""

    shoal: str
    python: str
    keras: str
    numpy: str
    backend: str  # and its version
    instructions: str  # that kernels are chosen by
    script: str  # a digest of its text
    cores: int


_WORDS = {"instructions": "the processor's instruction set", "script": "the script"}


def look_around(backend: str, script: str, is_module: bool, cores: int) -> HostFacts:
    """At this host. UsageError if the script is not there."""
    text = script_file(script, is_module).read_bytes()
    return HostFacts(
        shoal=metadata.version("shoal"),
        python=".".join(platform.python_version_tuple()[:2]),
        keras=installed_version("keras"),
        numpy=installed_version("numpy"),
        backend=f"{backend} {installed_version(backend)}",
        instructions=instruction_set(),
        script=hashlib.sha256(text).hexdigest()[:12],
        cores=cores,
    )


def differences(there: HostFacts, name: str, here: HostFacts) -> tuple[str, ...]:
    """One phrase for each fact that differs, with both values. Empty: workers of both hosts compute the same bits."""
    return tuple(
        f"{_WORDS.get(field, field)} is {theirs!r} on {name} and {ours!r} on this host"
        for field in HostFacts.__struct_fields__
        if field != "cores" and (theirs := getattr(there, field)) != (ours := getattr(here, field))
    )


def advice(phrases: tuple[str, ...]) -> str:
    """What to do about it."""
    if all(phrase.startswith("the script ") for phrase in phrases):
        return "Copy it there, or let `--sync` do that"
    return "Install the same packages on all hosts; processors that differ can't give the same bits"
