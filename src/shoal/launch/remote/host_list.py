"""The hosts of a run and how many workers each has, as the user names them. Pure."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import UsageError

# What ssh takes: an alias of its configuration, a name, an address, with or without a user. Never an option.
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@%:-]*")


@dataclass(frozen=True, slots=True)
class HostSlots:
    """One host, and how many workers it has room for."""

    name: str  # as ssh knows it
    slots: int = 1


@dataclass(frozen=True, slots=True)
class ChosenHosts:
    """Where a run is, and how many workers it has unless that was said."""

    hosts: tuple[HostSlots, ...] | None  # None: this one
    by_srun: bool
    workers: int


def choose_hosts(
    named: tuple[HostSlots, ...] | None, allocated: tuple[HostSlots, ...] | None, workers: int | None
) -> ChosenHosts:
    """`named`: by the user. `allocated`: by Slurm. `workers`: as the user said; they need not be tasks on one node."""
    if named is not None:
        return ChosenHosts(named, False, _or_slots(workers, named))
    if allocated is None or (len(allocated) == 1 and workers is not None):
        return ChosenHosts(None, False, 1 if workers is None else workers)
    several = len(allocated) > 1
    return ChosenHosts(allocated if several else None, several, _or_slots(workers, allocated))


def _or_slots(workers: int | None, hosts: tuple[HostSlots, ...]) -> int:
    """What the user said, be it 0, which is refused later; or as many as there is room for."""
    return sum(host.slots for host in hosts) if workers is None else workers


def named_hosts(hosts: str | None, hostfile: str | None) -> tuple[HostSlots, ...] | None:
    """Those of the one option or the other; None without both."""
    if hosts is not None and hostfile is not None:
        raise UsageError("--hosts and --hostfile: give one of them.")
    if hostfile is not None:
        try:
            return parse_hostfile(Path(hostfile).read_text(encoding="utf-8"), hostfile)
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--hostfile {hostfile}: can't read it: {error}.") from error
    return parse_hosts(hosts) if hosts is not None else None


def parse_hosts(text: str) -> tuple[HostSlots, ...]:
    """`a:4,b:4,[2001:db8::1]:2`; a host without a number has one slot."""
    return _checked([_host(word.strip(), f"--hosts {text}") for word in text.split(",")], f"--hosts {text}")


def parse_hostfile(text: str, path: str) -> tuple[HostSlots, ...]:
    """One host per line: `a:4`, `a 4` or, as Open MPI has it, `a slots=4`. What follows # is a comment."""
    hosts = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        where = f"--hostfile {path}, line {number}"
        if not words:
            continue
        name, *slots = words
        if len(slots) > 1:
            raise UsageError(
                f"{where}: expected a host and its slots, such as `gpu-7 slots=4`, found {line.strip()!r}."
            )
        hosts.append(HostSlots(_name(name, where), _slots(slots[0], where)) if slots else _host(name, where))
    return _checked(hosts, f"--hostfile {path}")


def _host(word: str, where: str) -> HostSlots:
    if found := re.fullmatch(r"\[([^]]+)\](?::(.*))?", word):
        return HostSlots(_name(found[1], where), _slots(found[2], where) if found[2] is not None else 1)
    name, colon, slots = word.rpartition(":")
    if not colon or ":" in name:  # an IPv6 address without brackets has no number of slots
        return HostSlots(_name(word, where))
    return HostSlots(_name(name, where), _slots(slots, where))


def _name(word: str, where: str) -> str:
    if not _HOST.fullmatch(word):
        raise UsageError(f"{where}: {word!r} is no host. Name it as you would to ssh.")
    return word


def _slots(word: str, where: str) -> int:
    number = word.removeprefix("slots=")
    if not number.isdecimal() or int(number) < 1:
        raise UsageError(f"{where}: {word!r} is no number of slots; expected 1 or more, as in `gpu-7:4`.")
    return int(number)


def _checked(hosts: list[HostSlots], where: str) -> tuple[HostSlots, ...]:
    if not hosts:
        raise UsageError(f"{where} names no host.")
    names = [host.name for host in hosts]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{where}: {name} is named twice. Name it once, with all of its slots.")
    return tuple(hosts)


def shares(hosts: tuple[HostSlots, ...], workers: int | None) -> tuple[tuple[str, ...], ...]:
    """The workers of each host: those of one host have neighbouring numbers. Filled in the order of the hosts."""
    room = sum(host.slots for host in hosts)
    wanted = room if workers is None else workers
    if wanted > room:
        listed = ", ".join(f"{host.name} has {host.slots}" for host in hosts)
        raise UsageError(
            f"-n {wanted}: there are too few slots, {room} in all ({listed}). Use -n {room} or fewer, or say how many "
            "more workers a host can bear, as in --hosts gpu-7:8."
        )
    ends = list(itertools.accumulate(host.slots for host in hosts))
    ids = [f"worker-{number}" for number in range(wanted)]
    return tuple(tuple(ids[end - host.slots : end]) for host, end in zip(hosts, ends, strict=True))


def server_shares(hosts: int, servers: int) -> tuple[tuple[str, ...], ...]:
    """The servers of each of so many hosts: in turns. They take no slots."""
    ids = [f"server-{number}" for number in range(servers)]
    return tuple(tuple(ids[place::hosts]) for place in range(hosts))
