"""`shoal worker`: one task of several that somebody else has started. They find each other and are one run.

The first task has the coordinator, and is a launcher with one worker; every other is an agent with one. What they share
beforehand is a secret in a file, from which all derive the run's key.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.errors import UsageError
from shoal.launch.agent import HostPart, attend
from shoal.launch.checkpoint_choice import claimed_by
from shoal.launch.local import Ended, launch
from shoal.launch.outputs import say
from shoal.launch.places import PlaceAsker, ScriptHere
from shoal.launch.plan import make_plan, new_run
from shoal.launch.request import LaunchRequest
from shoal.launch.script import find_script
from shoal.launch.task_place import TaskPlace
from shoal.wire import names, private
from shoal.wire.keys import RunKey

_SECRET_BYTES = 32  # at least
_SECRET_LIMIT = 4096
_COORDINATOR_WITHIN = 300.0  # seconds until the first task is there: schedulers start tasks when they please


@dataclass(frozen=True, slots=True)
class Task:
    """What this task was asked for."""

    place: TaskPlace
    key_file: str
    request: LaunchRequest


def work(task: Task, environ: Mapping[str, str], cores: Sequence[int]) -> Ended:
    """Take part until the run is over."""
    place = task.place
    if not place.first:
        raise UsageError(
            f"{place.source} do not tell the host of the first task. Say it to all of them, with --first HOST."
        )
    key = shared_key(Path(task.key_file), place.job)
    say(f"task {place.rank} of {place.size}, by {place.source}; the first is at {place.first}:{place.chosen_port}")
    return _lead(task, key, environ, tuple(cores)) if place.rank == 0 else _follow(task, key, environ, cores)


def shared_key(path: Path, job: str) -> RunKey:
    """The run's key, of a secret that all tasks have. Another job with the same secret has another key."""
    secret = private.read(path, _SECRET_LIMIT, "the key file", is_mounted=True).strip()
    if len(secret) < _SECRET_BYTES:
        raise UsageError(
            f"the key file {path} has {len(secret)} bytes, which could be guessed: expected {_SECRET_BYTES} or more. "
            "Make one with `openssl rand -hex 32`, and give the same to all tasks."
        )
    return RunKey(hashlib.sha256(b"shoal worker\0" + job.encode() + b"\0" + secret).digest())


def _lead(task: Task, key: RunKey, environ: Mapping[str, str], cores: tuple[int, ...]) -> Ended:
    place = task.place
    own = names.own_address(place.first)
    if not names.is_own(own):
        raise UsageError(
            f"this is the first task, but {place.first} ({own}) is another host by {place.source}. Say to all tasks "
            "where this one is, with --first HOST."
        )
    threads = task.request.threads or max(1, len(cores) // place.local_size)
    address = names.joined(own, place.chosen_port)
    request = replace(task.request, workers=place.size, address=address, threads=threads, is_task=True)
    run = new_run()
    with contextlib.ExitStack() as stack:
        claimed = None
        if request.checkpoint is not None:  # locked before anybody looks into it
            claimed = stack.enter_context(claimed_by(request.checkpoint, run))
        return launch(make_plan(request, environ, cores, run, ("worker-0",)), environ, claimed, key=key)


def _follow(task: Task, key: RunKey, environ: Mapping[str, str], cores: Sequence[int]) -> Ended:
    place, request = task.place, task.request
    script = ScriptHere(find_script(request.script, request.is_module), request.arguments, request.is_module)
    asker = PlaceAsker(names.joined(place.first, place.chosen_port), key, None, script, None)
    given = asker.ask(patient=True, member=f"worker-{place.rank}", within=_COORDINATOR_WITHIN)
    part = HostPart(
        given.config, (given.member,), request.max_restarts, key, asker.address, place.local_rank, place.local_size
    )
    end = attend(part, asker, environ, cores)
    return Ended(end.ok, end.code, f"shoal: {end.reason}" if end.reason else "")
