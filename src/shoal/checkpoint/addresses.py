"""Where checkpoints are: a folder, or an address in an object store such as s3://bucket/folder. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import UsageError

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """An address in an object store. As far as needed it is used as a Path is."""

    protocol: str
    key: str  # with the bucket; without a slash at its end

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> StoreAddress:
        return StoreAddress(self.protocol, self.key.rpartition("/")[0])

    def __truediv__(self, name: str) -> StoreAddress:
        return StoreAddress(self.protocol, f"{self.key}/{name}")

    def __str__(self) -> str:
        return f"{self.protocol}://{self.key}"


Place = Path | StoreAddress


def place_of(text: str) -> Place:
    """A path, made absolute, or an address with `://` in it. UsageError if there is none in the text."""
    place = given_place(text)
    return place.absolute() if isinstance(place, Path) else place


def given_place(text: str) -> Place:
    """The same, but a path stays as it was given."""
    found = _URL.fullmatch(text)
    if found is None:
        return Path(text)
    protocol, key = found[1].lower(), found[2].rstrip("/")
    if protocol in ("file", "local"):
        if not key.startswith("/"):
            raise UsageError(f"{text} is no path: expected file:///folder, or the path alone.")
        return Path(key)
    if not key or "//" in key or any(part in (".", "..") for part in key.split("/")):
        raise UsageError(f"{text} is no address of a store: expected one such as {protocol}://bucket/folder.")
    return StoreAddress(protocol, key)
