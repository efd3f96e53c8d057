"""The one session of this process: entered once, and there until the process ends."""

from __future__ import annotations

from shoal import hook
from shoal.session.session import Session

_current: Session | None = None


def is_running() -> bool:
    """Whether this process is a member of a run."""
    return _current is not None and _current.coordinator_link is not None


def current() -> Session:
    """This process's session. Without `shoal run` it is one of a single worker, made when first asked for."""
    return _current or enter(Session())


def enter(session: Session) -> Session:
    """This is it. The script's models train in it from now on."""
    global _current
    _current = session
    if session.files is not None:
        from shoal.files.patches import follow  # not before: it brings what one process alone does not need

        follow(session.files, session)  # before keras is hidden: it knows some functions that are replaced
    hook.install(session)
    return session
