"""How the coordinator is told of the error with which a script ended. Pure."""

from __future__ import annotations

from shoal.cluster.exits import exit_code
from shoal.cluster.messages import TEXT_LIMIT, Failed
from shoal.errors import PeerClosed, PeerTimeout
from shoal.observe.recorder import Moment


def failed(error: BaseException, traceback: str, now: Moment, where: str, of_all: bool) -> Failed:
    """What to say of it. `where`: the line of the script at which Shoal refused something."""
    blames, late = _blamed(error)
    return Failed(
        step=now.step,
        doing=now.activity,
        kind=type(error).__name__,
        error=str(error)[:TEXT_LIMIT],
        traceback=traceback[-TEXT_LIMIT:],
        blames=blames,
        late=late,
        code=exit_code(error),
        of_all=of_all,
        where=where,
    )


def _blamed(error: BaseException) -> tuple[tuple[str, ...], bool]:
    """Whose absence the error, or what caused it, speaks of; and whether they did not come within the deadline."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, PeerClosed):
            return (cause.peer,), False
        if isinstance(cause, PeerTimeout):
            return cause.missing, True
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return (), False
