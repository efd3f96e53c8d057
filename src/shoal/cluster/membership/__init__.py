"""Who is in the run and when it is over. Pure: the coordinator tells it what happens, and does what it decides.

membership.py      the events, and what follows from them: views, and the end
roster.py          who was expected, who is there, over which link each is heard
joining.py         who may join, and who of those that wait could be let in
losses.py          who is lost, and why
loss_reports.py    what the user is told of that, once each
verdicts.py        whether a trouble ends the run; the words of its end
patience.py        who waits for whom, once that has become long
requests.py        what somebody asks from another terminal
finished_calls.py  the script's calls that are over, and who must know
remembered.py      what a coordinator that takes over must know
service_caller.py  the coordinator's service, which looks after parameter servers
"""

from shoal.cluster.membership.membership import GATHERING, LEAVING, Membership

__all__ = ["GATHERING", "LEAVING", "Membership"]
