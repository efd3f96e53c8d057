"""Runs with parameter servers in which deliberate bugs must show: each plan is a scene, with a seed."""

from __future__ import annotations

from .paced_plans import fault, paced
from .plan import SILENCE, Fault, Plan


def primaries_die(seed: int) -> Plan:
    """One primary is lost in the middle of a push, on a slow network; then the next."""
    mark = ("Order", "Confirmed", "Pushed", "Push")[seed % 4]
    faults = (fault("kill", "primary", mark, 12 + seed % 5), fault("kill", "primary", mark, 40, shard=1))
    return paced(seed, servers=3, shards=2, late=0.1, restarts=2, bound=None, faults=faults)


def workers_die(seed: int) -> Plan:
    """Half-way through a push, so that another one computes the same batch."""
    kills = (fault("kill", f"worker-{number}", "Push", 9 + 8 * number + seed % 3) for number in range(2))
    return paced(seed, shards=3, late=0.1, restarts=2, faults=tuple(kills))


def paused_primary(seed: int) -> Plan:
    """It wakes up just when it was given up, and goes on with what it had heard in the old view."""
    pause = fault("pause", "primary", "Push", 10 + seed % 9, seconds=SILENCE + 0.02 * (seed % 10))
    return paced(
        seed, servers=3, shards=2, workers=4, late=0.1, bound=None, restarts=0, fences_kill=False, faults=(pause,)
    )


def paused_workers(seed: int) -> Plan:
    """They wake up when the run has gone on without them, and push."""
    pauses = (fault("pause", f"worker-{n}", "Pull", 8 + 5 * n + seed % 5, 0.005, SILENCE + 0.3) for n in range(2))
    return paced(seed, epochs=4, bound=1 + seed % 2, late=0.05, fences_kill=False, faults=tuple(pauses))


def slow_worker(seed: int) -> Plan:
    return paced(seed, workers=3, bound=2, slow=6.0)


def torn_backups(seed: int) -> Plan:
    """One backup has the last update of a lost primary, another has not, and leads."""
    kill = fault("kill", "primary", "Order", 13 + seed % 8)
    return paced(seed, servers=3, replicas=3, shards=1, workers=6, late=0.4, restarts=0, bound=None, faults=(kill,))


def newcomers_and_old_ones(seed: int) -> Plan:
    """The primary is lost when there is both a backup and somebody who is just being brought up."""
    faults = (
        fault("kill", "backup", "Order", 12 + seed % 5),
        fault("kill", "primary", "placed", 2, delay=0.001 * (seed % 5)),
    )
    return paced(seed, servers=4, replicas=3, shards=2, workers=4, late=0.2, bound=None, restarts=0, faults=faults)


def computed_again_after_a_takeover(seed: int) -> Plan:
    """A worker stops when one shard has its push. When its lease has ended, a newcomer leads that shard."""
    faults = (
        fault("break", "primary", "Push of worker-0", 3, seconds=0.3, shard=1, other="worker-0"),
        fault("pause", "worker-0", "Push of worker-0", 3, seconds=0.3),
        fault("kill", "backup", "Push of worker-0", 3, delay=0.02),
        fault("kill", "primary", "Push of worker-0", 3, delay=0.15),
    )
    return paced(seed, servers=4, workers=4, bound=None, restarts=0, faults=faults)


def pulled_and_lost(seed: int) -> Plan:
    """A primary is lost when it has just given weights to somebody."""
    kills = (fault("kill", "primary", "Pulled", 20 + 9 * n + seed % 5, shard=n) for n in range(2))
    return paced(seed, servers=3, workers=4, late=0.3, bound=None, batches=30, restarts=2, faults=tuple(kills))


def just_caught_up(seed: int) -> Plan:
    """The primary is lost when the coordinator has just heard that a newcomer may be promoted."""
    faults = (
        fault("kill", "backup", "Push", 12),
        fault("kill", "primary", "CaughtUp", 2, delay=0.02 + 0.002 * (seed % 4)),
    )
    return paced(seed, servers=3, shards=1, workers=16, late=0.1, bound=None, restarts=1, batches=80, faults=faults)


def broken_connections(seed: int) -> Plan:
    others = ("backup", "worker-1", "backup", "worker-2")
    cuts = (
        fault("break", "primary", "Order", 6 + 9 * n + seed % 5, seconds=0.01, shard=n % 2, other=other)
        for n, other in enumerate(others)
    )
    return paced(seed, late=0.05, repeated=0.2, restarts=0, faults=tuple(cuts))


def flipped_bits(seed: int) -> Plan:
    return paced(seed, epochs=3, late=0.05, faults=(fault("flip", "backup", "Order", 9 + seed % 9, shard=seed % 2),))


def saves(seed: int) -> Plan:
    """Workers want checkpoints; one of them is lost in the middle of it, or the coordinator is."""
    mark = ("AtRest", "Save", "Copied", "AtRest", "written")[seed % 5]
    nth = 8 + seed % 20 if mark == "written" else 1 + seed % 2
    lost = fault("kill", "worker-0", mark, nth) if seed % 2 else fault("coordinator", mark=mark, nth=nth)
    faults = (fault("save", "chief", "Finish", 4 + seed % 3), fault("save", "chief", "Finish", 12), lost)
    return paced(seed, servers=3, shards=3, late=0.2, restarts=1, bound=None, batches=20, saves=True, faults=faults)


def half_acknowledged(seed: int) -> Plan:
    """The only replica of a shard is lost while another shard keeps the workers waiting."""
    faults = (
        fault("pause", "primary", "Push", 17 + seed % 9, seconds=0.2, shard=1),
        fault("kill", "primary", "Push", 17 + seed % 9, delay=0.01),
    )
    return paced(seed, replicas=1, setbacks=True, restarts=2, faults=faults)


def late_news(seed: int) -> Plan:
    """The only replica of a shard is lost, or given up, while the coordinator hears late of what was acknowledged."""
    lost = fault(("kill", "pause")[seed % 2], "primary", "Pushed", 20 + seed % 9, seconds=SILENCE + 0.3)
    return paced(seed, replicas=1, workers=5, late=0.4, bound=None, setbacks=True, restarts=2, faults=(lost,))


def coordinators_die(seed: int) -> Plan:
    """One after the other, before anybody is told, in the middle of telling, and with what it was told."""
    mark = ("written", "Grant", "Finish", "ShardsPlaced", "EpochOver", "Next", "WantWork")[seed % 7]
    first = fault("coordinator", mark=mark, nth=1 + seed % 4, seconds=0.05)
    second = fault("coordinator", mark="Grant", nth=16 + seed % 9, seconds=0.05)
    return paced(seed, bound=1 + seed % 2, slow=6.0, late=0.05, faults=(first, second))


def coordinators_and_workers_die(seed: int) -> Plan:
    """Another worker comes; the coordinator dies when it tells it where things are."""
    faults = (
        fault("kill", f"worker-{seed % 2}", "Finish", 3 + seed % 5),
        fault("coordinator", mark="ShardsPlaced", nth=6 + seed % 12, seconds=0.05),
    )
    return paced(seed, epochs=3, bound=1, late=0.05, slow=3.0, faults=faults)


def three_replicas(seed: int) -> Plan:
    """The backup that leads after a loss has an update that the other, which stopped, has not; and is lost too."""
    faults = (
        fault("kill", "primary", "Order", 14 + seed % 7),
        fault("pause", "backup", "placed", 2, seconds=0.1),
        fault("kill", "primary", "placed", 2, delay=0.02),
    )
    return paced(seed, servers=3, replicas=3, shards=1, workers=4, late=0.1, restarts=0, bound=None, faults=faults)


def coordinators_and_servers_die(seed: int) -> Plan:
    """A primary is lost while nobody looks, or just after somebody does again who knows only what was written anew."""
    faults = (
        fault("coordinator", mark="Grant", nth=4 + seed % 7, seconds=0.05),
        fault("coordinator", mark="Grant", nth=12 + seed % 7, seconds=0.05),
        fault("kill", "primary", "Grant", 12 + seed % 7, delay=0.02 + 0.02 * (seed % 4)),
    )
    return paced(seed, servers=3, late=0.05, restarts=1, faults=faults)


def finished_in_vain(seed: int) -> Plan:
    """The coordinator does not hear that an update is finished."""
    crash = fault("coordinator", mark="Finish", nth=4 + seed % 9, delay=0.0002, seconds=0.05)
    return paced(seed, bound=1 + seed % 2, faults=(crash,))


def halted(seed: int) -> Plan:
    """An epoch is to end early, and the last one that still computes is lost."""
    faults = (
        fault("halt", "worker-1", "Finish", 2 + seed % 6),
        fault("kill", "worker-0", "Halt", delay=0.02 + 0.01 * (seed % 3)),
    )
    return paced(seed, restarts=0, bound=None, slow=12.0, faults=faults)


def replaced(seed: int) -> Plan:
    """Another server comes for one that was lost, and there is time enough to bring it up."""
    faults = (
        fault("kill", "primary", "Order", 12 + seed % 5),
        fault("dawdle", "worker-0", "Finish", 14, seconds=2.5),
    )
    return paced(seed, restarts=1, bound=None, faults=faults)


def lost_before_anything_was_supplied(seed: int) -> Plan:
    """The only server of a shard is lost; then so is the worker that is asked for its weights, or the next server."""
    faults = (
        fault("kill", "primary", "Push", 12 + seed % 7),
        fault("kill", f"worker-{seed % 3}", "Lacking", 3 + seed % 2),
        fault("kill", "primary", "Lacking", 5 + seed % 2),
    )
    return paced(seed, servers=3, replicas=1, workers=3, bound=None, setbacks=True, restarts=4, faults=faults)


def not_supplied_at_once(seed: int) -> Plan:
    """The only server of a shard is lost; and the question for its weights, since connections break just then."""
    faults = (
        fault("kill", "primary", "Push", 6 + seed % 7),
        *(fault("break", "primary", "Lacking", 2, seconds=0.02, other=f"worker-{number}") for number in range(3)),
    )
    return paced(seed, servers=2, replicas=1, shards=1, workers=3, bound=None, setbacks=True, restarts=0, faults=faults)


def lost_between_two_epochs(seed: int) -> Plan:
    """A worker is lost when some have heard that all go on, and others have not."""
    kill = fault("kill", f"worker-{seed % 3}", "Next", 1 + seed % 2, delay=0.0003 * (seed % 5))
    return paced(seed, bound=1, late=0.4, restarts=0, faults=(kill,))


def workers_die_late(seed: int) -> Plan:
    """When callbacks have seen an epoch, so that newcomers must be told."""
    kills = (fault("kill", f"worker-{number}", "Push", 24 + 4 * number + seed % 3) for number in range(2))
    return paced(seed, restarts=2, faults=tuple(kills))


def servers_come_at_the_end(seed: int) -> Plan:
    kill = fault("kill", "backup", "EpochOver", 4 + seed % 6, delay=0.002 * (seed % 4))
    return paced(seed, servers=3, late=0.05, restarts=1, faults=(kill,))


def halted_while_a_server_is_away(seed: int) -> Plan:
    """For longer than a lease."""
    faults = (
        fault("halt", "worker-0", "Finish", 12 + seed % 6),
        fault("pause", "primary", "Halt", delay=0.001 * (seed % 5), seconds=0.4),
    )
    return paced(seed, restarts=0, bound=None, workers=4, faults=faults)


def all_replaced_before_the_first_step(seed: int) -> Plan:
    """All together, on servers: those who have opened the second fit are lost before its first update."""
    kills = tuple(Fault("kill", number, "Open", 0.05 + 0.3 * number, nth=4) for number in range(3))
    return Plan(seed, servers=2, bound=0, least=3, restarts=3, validates=False, faults=kills)
