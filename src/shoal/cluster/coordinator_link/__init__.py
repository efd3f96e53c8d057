"""A member's link to the coordinator.

link.py          the link: one thread that sends its beats and hears the coordinator
heard.py         what was heard so far, and what it means for this member; pure
outbox.py        what is to be said, and what another coordinator must be told again; pure
beats.py         what a beat says of this member; pure
last_words.py    how a script's error is told; pure
service_feed.py  hands on what the coordinator's service says, in order
reaching.py      connects to the coordinator, or to the one that is started in its place
"""

from shoal.cluster.coordinator_link.link import CoordinatorLink
from shoal.cluster.coordinator_link.service_feed import ServiceReader

__all__ = ["CoordinatorLink", "ServiceReader"]
