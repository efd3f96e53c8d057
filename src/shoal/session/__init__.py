"""One process's part in a run.

session.py       the order of calls: join the run → (when the script first trains) form the group → close
starting.py      from a run's settings to a session that has joined it
this_process.py  the one session of this process
chief_watch.py   the chief, as a worker sees it that waits for its files
user_lines.py    what a worker says to the user of its own accord
"""

from shoal.session.session import Session
from shoal.session.starting import start
from shoal.session.this_process import current, is_running

__all__ = ["Session", "current", "is_running", "start"]
