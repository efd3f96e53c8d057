"""The only room with sockets and shared memory: messages, keys, connections, memory, wakeups.

Nothing on the wire is ever unpickled or evaluated. Every connection proves the run's key in both directions
before anything is allocated for it, every frame is bounded, every wait has a deadline. What leaves the host is
encrypted (TLS 1.3, the certificate known by its pin).

`shoal.wire.memory` is imported by its own name: it brings numpy, which the launcher and the coordinator do
without.
"""

from shoal.wire.certificates import Pin, RunCertificate
from shoal.wire.connection import Connection, connect
from shoal.wire.join_token import JoinToken
from shoal.wire.keys import Handshake, RunKey
from shoal.wire.listener import Listener
from shoal.wire.messages import Message, MessageCodec
from shoal.wire.transfer import Receive, Sending, await_any, transfer
from shoal.wire.wakeup import Wakeup

__all__ = [
    "Connection",
    "Handshake",
    "JoinToken",
    "Listener",
    "Message",
    "MessageCodec",
    "Pin",
    "Receive",
    "RunCertificate",
    "RunKey",
    "Sending",
    "Wakeup",
    "await_any",
    "connect",
    "transfer",
]
