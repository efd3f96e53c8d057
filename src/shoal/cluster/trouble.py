"""Why a worker no longer counts, as values, and how to say it.

`explain` turns all that is known about a run's troubles into its one End. It prefers causes to
consequences: a worker that could not reach a dead peer is not the one to blame.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shoal.cluster.exits import is_scripts
from shoal.cluster.messages import End, Failed
from shoal.observe.phases import Activity

_PLACED = re.compile(r"\S+:\d+: ")  # a text that names a line of the script itself


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """The last that was known of a worker when it got into trouble."""

    pid: int
    step: int
    doing: Activity
    silent: float  # seconds since it was last heard
    finished: bool  # it had said Done

    def __str__(self) -> str:
        if self.finished:
            return f"after finishing its script at step {self.step}"
        return f"at step {self.step} ({self.doing})"


@dataclass(frozen=True, slots=True)
class ScriptRaised:
    """It reported an error of its own accord."""

    where: Whereabouts
    failed: Failed

    def sentence(self, who: str) -> str:
        if self.failed.kind == "SystemExit":
            return f"the script on {who} exited with code {self.failed.code} {self.where}"
        return f"{who} raised {self.headline().removesuffix('.')} {self.where}"

    def refusal(self) -> str:
        """What was refused, and where in the script."""
        text = self.failed.error.strip().removesuffix(".")
        return text if _PLACED.match(text) else f"{self.failed.where}: {text}"

    def headline(self) -> str:
        lines = self.failed.error.strip().splitlines()
        more = " […]" if len(lines) > 1 else ""
        return f"{self.failed.kind}: {lines[0]}{more}" if lines else self.failed.kind

    def advice(self) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class Died:
    """Its process ended and it had not said so. A negative code is a signal's number."""

    where: Whereabouts
    code: int

    def sentence(self, who: str) -> str:
        if self.where.pid == 0:
            return f"{who} {ending(self.code)} before it had joined the run"
        unfinished = " without having finished its script," if self.code >= 0 and not self.where.finished else ""
        return f"{who} (pid {self.where.pid}) {ending(self.code)}{unfinished} {self.where}{_heard(self.where)}"

    def advice(self) -> str:
        return _SIGNAL_ADVICE.get(-self.code, "")


@dataclass(frozen=True, slots=True)
class Vanished:
    """Its connection closed and it had not said so; nobody saw its process end (yet)."""

    where: Whereabouts

    def sentence(self, who: str) -> str:
        return f"{who} (pid {self.where.pid}) closed its connection {self.where}{_heard(self.where)}"

    def advice(self) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class Silent:
    """It sent nothing for longer than its deadline."""

    where: Whereabouts
    deadline: float
    process: str  # what the process was seen to do: "is stopped", "is idle", …

    def sentence(self, who: str) -> str:
        silence = f"was silent for {self.where.silent:.1f} s (deadline {self.deadline:.1f} s)"
        return f"{who} (pid {self.where.pid}) {silence} {self.where}; its process {self.process}"

    def advice(self) -> str:
        return "If it was only slow, allow more with `shoal run --timeout SECONDS`."


@dataclass(frozen=True, slots=True)
class Unreachable:
    """Its peers can't reach it, again and again, although it is heard here."""

    where: Whereabouts
    by: str
    why: str

    def sentence(self, who: str) -> str:
        return f"{who} (pid {self.where.pid}) could not be reached by {self.by} {self.where}: {self.why}"

    def advice(self) -> str:
        return "Look at the network between the two hosts."


@dataclass(frozen=True, slots=True)
class Overdue:
    """It lives, but did not come to where another waited for it, for as long as the deadline allows."""

    where: Whereabouts
    deadline: float
    waiting: str
    waiting_where: Whereabouts

    def sentence(self, who: str) -> str:
        in_vain = f"did not come within {self.deadline:.1f} s (deadline {self.deadline:.1f} s)"
        waited = f"to {self.waiting}, which waited {self.waiting_where}"
        return f"{who} (pid {self.where.pid}) {in_vain} {waited}; it was alive {self.where}"

    def advice(self) -> str:
        return "If it was only slow, allow more with `shoal run --timeout SECONDS`: it gets 60 times as long."


@dataclass(frozen=True, slots=True)
class Unlike:
    """It asked to join with another numeric identity."""

    differences: str

    def sentence(self, who: str) -> str:
        return f"{who} can't join, its sums would differ: {self.differences}"

    def advice(self) -> str:
        return "Start every worker with the same packages, threads and pieces on the same kind of processor."


@dataclass(frozen=True, slots=True)
class Absent:
    """It never joined."""

    deadline: float
    came: int
    expected: int

    def sentence(self, who: str) -> str:
        return f"{who} did not join within {self.deadline:.0f} s; {self.came} of {self.expected} came"

    def advice(self) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class Deserted:
    """It finished its script while another waits for it in an exchange."""

    where: Whereabouts
    waiting: str
    waiting_where: Whereabouts
    waiting_for: float

    def sentence(self, who: str) -> str:
        waits = f"{self.waiting} has been waiting for it for {self.waiting_for:.1f} s {self.waiting_where}"
        return f"{who} finished its script at step {self.where.step}, but {waits}"

    def advice(self) -> str:
        return "Every worker must make the same calls of fit, evaluate and predict, with as many steps."


Trouble = ScriptRaised | Died | Vanished | Silent | Unreachable | Overdue | Unlike | Absent | Deserted


def explain(troubles: Mapping[str, Trouble], workers: int, finished: tuple[str, ...] = ()) -> End:
    """The run's End. `troubles` is in the order in which they were noticed and is not empty."""
    causes = {id: trouble for id, trouble in troubles.items() if not _blames(trouble)}
    if not causes:
        return _missed(troubles, finished)
    trouble = next(iter(causes.values()))
    alike = tuple(id for id, other in causes.items() if _same(trouble, other))
    names, code = _names(alike, workers), _code(trouble, of_all=len(alike) == workers)
    if isinstance(trouble, ScriptRaised) and trouble.failed.where:
        about = f"{trouble.failed.kind} on {names} {trouble.where}."
        return End(ok=False, code=code, reason=trouble.refusal(), culprits=alike, advice=about, refused=True)
    return End(
        ok=False,
        code=code,
        reason=trouble.sentence(names),
        culprits=alike,
        traceback=trouble.failed.traceback if isinstance(trouble, ScriptRaised) else "",
        advice=trouble.advice(),
    )


def _code(trouble: Trouble, of_all: bool) -> int:
    """The run's exit code: the script's, if it has ended its process with one. 0 only if it did so everywhere."""
    match trouble:
        case ScriptRaised(_, failed):
            return failed.code
        case Died(_, code) if is_scripts(code) and (code or of_all):
            return code
        case _:
            return 1


def is_own_accord(trouble: Trouble) -> bool:
    """The script has ended it: the other workers, which run the same script, may be about to do the same."""
    return isinstance(trouble, ScriptRaised) or (isinstance(trouble, Died) and is_scripts(trouble.code))


def _missed(troubles: Mapping[str, Trouble], finished: tuple[str, ...]) -> End:
    """Only consequences are known: say who is missed, in the words of the first who missed them."""
    by, trouble = next(iter(troubles.items()))
    assert isinstance(trouble, ScriptRaised)
    blames = trouble.failed.blames
    names = (f"{id} (its script had finished)" if id in finished else id for id in blames)
    reason = f"{', '.join(names)} did not come to {by} {trouble.where}: {trouble.headline()}"
    # Without a traceback: the one there is shows where the waiting worker stood, not what the missing one did.
    return End(ok=False, code=1, reason=reason, culprits=blames)


def _blames(trouble: Trouble) -> bool:
    """It is a consequence of what happened to others."""
    return isinstance(trouble, ScriptRaised) and bool(trouble.failed.blames)


def same_fault(one: Trouble, other: Trouble) -> bool:
    """The second came of the same cause as the first, on another worker that took over: it will come on any."""
    match one, other:
        case ScriptRaised(_, a), ScriptRaised(_, b) if not (a.blames or b.blames):
            return a.kind == b.kind and (a.error == b.error or a.step == b.step)
        case Died(where, code), Died(there, other_code):
            crashed = -code in _CRASHES and -other_code in _CRASHES
            return where.step == there.step and (crashed or (is_scripts(code) and code == other_code))
        case _:
            return False


def _same(one: Trouble, other: Trouble) -> bool:
    """They happened to several workers and are worth one sentence."""
    match one, other:
        case ScriptRaised(_, a), ScriptRaised(_, b):
            return (a.kind, a.error, a.code) == (b.kind, b.error, b.code)
        case Died(_, a_code), Died(_, b_code):
            return a_code == b_code
        case Absent(), Absent():
            return True
        case _:
            return one is other


def _names(ids: tuple[str, ...], workers: int) -> str:
    return f"all {workers} workers" if len(ids) == workers > 1 else listed(ids)


def listed(ids: Sequence[str]) -> str:
    """Some members' names, as one says them."""
    return f"{', '.join(ids[:-1])} and {ids[-1]}" if len(ids) > 1 else ids[0]


def _heard(where: Whereabouts) -> str:
    return f", {where.silent:.1f} s after it was last heard"


def ending(code: int) -> str:
    """How a process ended, given its exit code; a negative one is a signal's number."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)

_SIGNAL_ADVICE: dict[int, str] = {
    signal.SIGKILL: "If nobody sent that signal, the machine ran out of memory: `dmesg` says so.",
    signal.SIGSEGV: "A native library crashed; the worker's log holds the Python stack.",
    signal.SIGABRT: "A native library gave up; the worker's log holds its last words.",
}
