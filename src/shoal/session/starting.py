"""From a run's settings to a session that has joined it: listen for peers, join, keep a record."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from functools import partial
from pathlib import Path

from shoal import files
from shoal.clock import Deadline
from shoal.cluster import coordinator_address, folders
from shoal.cluster.clock_offset import ClockOffset
from shoal.cluster.coordinator_link import CoordinatorLink
from shoal.cluster.evidence import this_machine, this_place
from shoal.cluster.identity import Identity
from shoal.cluster.member_record import record_keeper
from shoal.cluster.view import Member, Nearby, role_of
from shoal.config import RunConfig
from shoal.files import Files
from shoal.hook.profiling import StepProfile
from shoal.observe.profiled_steps import PROFILES, ProfiledSteps
from shoal.observe.recorder import RING, Moment, Recorder
from shoal.session.session import Session
from shoal.session.this_process import enter
from shoal.wire import addresses
from shoal.wire.certificates import RunCertificate
from shoal.wire.keys import RunKey
from shoal.wire.listener import Listener
from shoal.wire.status_page import StatusPage


def start(
    config: RunConfig,
    key: RunKey,
    member_id: str,
    folder: Path,
    on_chief: Callable[[], None] = lambda: None,
    on_training: Callable[[], None] = lambda: None,
) -> Session:
    """Joins the run; returns when all members have joined. The script's models train in it from now on.

    `on_chief` is called when this worker becomes the chief, `on_training` after its first step, or at once if it
    comes late.
    """
    role = role_of(member_id)
    own_host = f"unix:{folder / member_id}.sock"
    address = own_host if config.is_on_one_host else addresses.any_port(config.host)
    certificate = RunCertificate.new() if addresses.needs_certificate(address) else None
    listener = Listener(address, key, certificate=certificate)
    # Beside the one for other hosts. Servers share no memory with anybody there.
    both = config.transport == "auto" and not config.is_on_one_host and role == "worker"
    nearby = Listener(own_host, key) if both else None
    coordinator = coordinator_address.find(folder, Deadline.after(config.deadlines.start))
    find = partial(coordinator_address.find, folder) if config.least is not None else None
    near = Nearby(this_place(), own_host) if config.transport == "auto" else None
    member = Member(member_id, role, os.getpid(), platform.node(), this_machine(), listener.address, near)
    page = StatusPage(folder / f"{member_id}{folders.STATUS_PAGE}")
    profile = _profile(config, member_id)
    hears = page.write if profile is None else partial(_hear, page, profile)
    recorder = Recorder(hears, RING if config.record else 0)
    identity = Identity.of_this_process(config)
    shared = _files(config, member_id, folder)

    def become_chief() -> None:
        on_chief()
        if shared is not None:
            shared.become_chief()

    clock_offset = ClockOffset(member.machine) if not config.logs else None
    # The listener is restored if somebody deletes the run's folder.
    upkeep = (nearby or listener).restore
    coordinator_link = CoordinatorLink.join(
        coordinator, key, member, identity, config.deadlines, recorder, become_chief, find, upkeep, clock_offset
    )
    keeper = record_keeper(config, coordinator_link, clock_offset)
    if keeper is not None:
        keeper.start()
    trains: Callable[[], None] | None = on_training
    if not coordinator_link.view.has(member_id):
        on_training()
        trains = None
    return enter(
        Session(member_id, config, coordinator_link, listener, key, trains, folder, shared, nearby, keeper, profile)
    )


def _profile(config: RunConfig, member: str) -> StepProfile | None:
    """Not on other hosts, which have no logs, and not on servers."""
    if config.profile is None or not config.logs or role_of(member) != "worker":
        return None
    return StepProfile(ProfiledSteps(*config.profile), Path(config.logs, PROFILES, member))


def _hear(page: StatusPage, profile: StepProfile, moment: Moment) -> None:
    page.write(moment)
    profile.hear(moment)


def _files(config: RunConfig, member: str, folder: Path) -> Files | None:
    """For a run in which several processes execute the script."""
    if config.is_single:
        return None
    own = [config.logs, config.saving.folder if config.saving is not None else "", config.resume or ""]
    return files.start(folder, member, filter(None, own), os.environ, partial(folders.remember, folder))
