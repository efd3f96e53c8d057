"""The run's key and how two processes prove to each other that they hold it.

    connects -> listens   greeting: magic, version, nonce C                      40 bytes
    listens -> connects   greeting: magic, version, nonce S; HMAC(listens, C, S) 72 bytes
    connects -> listens   HMAC(connects, C, S)                                   32 bytes
    listens -> connects   welcome                                                 8 bytes

Both nonces are fresh, so an old conversation proves nothing; each direction has its own label, so a proof
can't be sent back to whom it came from. All sizes are fixed: nothing is allocated on a stranger's word.

Inside TLS the proofs also cover the pin of the certificate that each side sees (`binding`): whoever sits in between
with a certificate of its own can't use the proofs that it relays. Without TLS there is none, and the bytes are those
above.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Generator
from pathlib import Path

from shoal.errors import BadFrame, Refused, UsageError
from shoal.wire import private

VERSION = 1
_MAGIC = b"shoal\x00"
_GREETING = _MAGIC + VERSION.to_bytes(2, "little")
_WELCOME = b"welcome\x00"
_NONCE_BYTES = 32
_PROOF_BYTES = 32
_KEY_BYTES = 32


class RunKey:
    """The secret that all members of one run hold, and nobody else."""

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        if len(secret) != _KEY_BYTES:
            raise UsageError(f"a run's key has {_KEY_BYTES} bytes, not {len(secret)}")
        self._secret = secret

    def __repr__(self) -> str:
        return "RunKey(secret)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunKey) and hmac.compare_digest(self._secret, other._secret)

    def __hash__(self) -> int:
        return hash(self._secret)

    @classmethod
    def new(cls) -> RunKey:
        return cls(secrets.token_bytes(_KEY_BYTES))

    def save(self, path: Path) -> None:
        """Write the key to a new file that only its owner may read."""
        private.write_new(path, self._secret)

    @classmethod
    def load(cls, path: Path) -> RunKey:
        return cls(path.read_bytes())

    def hex(self) -> str:
        """The secret itself, for a join token. It belongs in no log, no command line and no environment."""
        return self._secret.hex()

    def proof(self, label: bytes, *parts: bytes) -> bytes:
        """Shows knowledge of the key, for this label and these parts only."""
        return hmac.new(self._secret, b"shoal " + label + b":" + b"".join(parts), hashlib.sha256).digest()


class Handshake:
    """One side of the proof. Sans-io: feed it exactly `wants` bytes at a time, send what it returns.

    `done` is true once the other side has proven the key. A wrong word raises, and the connection is to be
    closed without an answer.
    """

    def __init__(self, key: RunKey, *, connects: bool, binding: bytes = b"") -> None:
        self._key = key
        self._binding = binding
        self._steps = self._connect() if connects else self._listen()
        self._answer, self.wants = next(self._steps)
        self.done = False

    def first(self) -> bytes:
        """What to send before anything was received; the listening side says nothing first."""
        return self._answer

    def feed(self, data: bytes) -> bytes:
        """Take the next `wants` bytes, return what to send now (maybe nothing)."""
        if self.done or len(data) != self.wants:
            raise BadFrame(f"the handshake wants {self.wants} bytes, not {len(data)}")
        try:
            answer, self.wants = self._steps.send(data)
        except StopIteration as end:
            self.done, self.wants = True, 0
            last: bytes = end.value
            return last
        return answer

    def _connect(self) -> Generator[tuple[bytes, int], bytes, bytes]:
        mine = secrets.token_bytes(_NONCE_BYTES)
        reply = yield _GREETING + mine, len(_GREETING) + _NONCE_BYTES + _PROOF_BYTES
        theirs, proof = _read_greeting(reply[:-_PROOF_BYTES]), reply[-_PROOF_BYTES:]
        if not hmac.compare_digest(proof, self._key.proof(b"listens", mine, theirs, self._binding)):
            raise Refused("key", "the process that listens there does not hold this run's key")
        welcome = yield self._key.proof(b"connects", mine, theirs, self._binding), len(_WELCOME)
        if welcome != _WELCOME:
            raise BadFrame("the handshake did not end with a welcome")
        return b""

    def _listen(self) -> Generator[tuple[bytes, int], bytes, bytes]:
        greeting = yield b"", len(_GREETING) + _NONCE_BYTES
        theirs = _read_greeting(greeting)
        mine = secrets.token_bytes(_NONCE_BYTES)
        proof = yield _GREETING + mine + self._key.proof(b"listens", theirs, mine, self._binding), _PROOF_BYTES
        if not hmac.compare_digest(proof, self._key.proof(b"connects", theirs, mine, self._binding)):
            raise Refused("key", "the process that connected does not hold this run's key")
        return _WELCOME


def _read_greeting(data: bytes) -> bytes:
    """The nonce in a greeting, if it is one and of our version."""
    if not data.startswith(_MAGIC):
        raise BadFrame("the other side does not speak Shoal's protocol")
    version = int.from_bytes(data[len(_MAGIC) : len(_GREETING)], "little")
    if version != VERSION:
        raise Refused("version", f"the other side speaks version {version} of Shoal's protocol, this side {VERSION}")
    return data[len(_GREETING) :]
