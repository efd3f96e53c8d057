"""A join token is what a host needs to take part in a run: the run's key and the pin of its certificate, in one file.

    shoal ticket 1
    run: digits-3f2a
    key: 64 digits of 0-9 and a-f                 the secret: whoever holds it is a member
    certificate: 64 digits of 0-9 and a-f         the pin: whom to say it to

It is carried to the other host on a trusted way (scp, a mounted secret). Nothing else is accepted in it: a token
that was cut off, edited or mixed up is found out before anything is sent to anybody.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import UsageError
from shoal.wire import private
from shoal.wire.certificates import Pin
from shoal.wire.keys import RunKey

_MAX_BYTES = 1 << 10
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_TEXT = re.compile(
    rf"shoal ticket (?P<version>[0-9]{{1,4}})\n"
    rf"run: (?P<run>{_RUN.pattern})\n"
    rf"key: (?P<key>[0-9a-f]{{64}})\n"
    rf"certificate: (?P<pin>[0-9a-f]{{64}})\n"
)
_VERSION = "1"


@dataclass(frozen=True, slots=True)
class JoinToken:
    """Admission to one run."""

    run: str
    key: RunKey
    pin: Pin

    def __post_init__(self) -> None:
        if not _RUN.fullmatch(self.run):
            raise UsageError(f"{self.run!r} can't be the run's name in a ticket: use letters, digits, . _ and -")

    def save(self, path: Path) -> None:
        """Write it to a new file that only its owner may read."""
        lines = (f"shoal ticket {_VERSION}", f"run: {self.run}", f"key: {self.key.hex()}", f"certificate: {self.pin}")
        private.write_new(path, "".join(f"{line}\n" for line in lines).encode("ascii"))

    @classmethod
    def load(cls, path: Path, run: str | None = None) -> JoinToken:
        """What `save` wrote. UsageError if it is malformed, readable by others, or not for the run that is meant."""
        data = private.read(path, _MAX_BYTES, "the ticket", is_mounted=True)
        found = _TEXT.fullmatch(data.decode("latin-1"))
        if found is None:
            raise UsageError(
                f"the ticket {path} is malformed: expected the 4 lines of a Shoal ticket (version, run, key, "
                "certificate) and nothing else. Copy it again, as it is, from the host that started the run."
            )
        if found["version"] != _VERSION:
            raise UsageError(
                f"the ticket {path} has version {found['version']}, this Shoal reads version {_VERSION}. "
                "Use the same Shoal on all hosts."
            )
        if run is not None and found["run"] != run:
            raise UsageError(
                f"the ticket {path} is for another run: it is for {found['run']}, not for {run}. "
                "Copy the ticket of this run from the host that started it."
            )
        return cls(found["run"], RunKey(bytes.fromhex(found["key"])), Pin.parse(found["pin"]))
