"""Addresses are strings: `unix:/path/to/socket` or `tcp:127.0.0.1:4321` (port 0: any free one)."""

from __future__ import annotations

import ipaddress
import os
import socket
from dataclasses import dataclass

from shoal.errors import UsageError

_UNIX_PATH_MAX = 107  # what the kernel's sockaddr_un holds, without its final zero


@dataclass(frozen=True, slots=True)
class UnixAddress:
    path: str

    @property
    def family(self) -> int:
        return socket.AF_UNIX

    @property
    def target(self) -> str:
        return self.path

    def __str__(self) -> str:
        return f"unix:{self.path}"


@dataclass(frozen=True, slots=True)
class TcpAddress:
    host: str
    port: int

    @property
    def family(self) -> int:
        return socket.AF_INET6 if ":" in self.host else socket.AF_INET

    @property
    def target(self) -> tuple[str, int]:
        return (self.host, self.port)

    def __str__(self) -> str:
        return f"tcp:[{self.host}]:{self.port}" if ":" in self.host else f"tcp:{self.host}:{self.port}"


Address = UnixAddress | TcpAddress


def parse(text: str) -> Address:
    """The address that `text` names; a UsageError says what is wrong with it and what would be right."""
    scheme, _, rest = text.partition(":")
    if scheme == "unix":
        return _parse_unix(rest)
    if scheme == "tcp":
        return _parse_tcp(text, rest)
    raise UsageError(f"{text!r} is no address: expected unix:/path or tcp:127.0.0.1:PORT")


def _parse_unix(path: str) -> UnixAddress:
    if not path.startswith("/"):
        raise UsageError(f"unix:{path} is no address: the path must be absolute")
    if len(os.fsencode(path)) > _UNIX_PATH_MAX:
        raise UsageError(
            f"the path of a unix socket may have {_UNIX_PATH_MAX} bytes, this one has "
            f"{len(os.fsencode(path))}: {path}. Use a shorter folder (TMPDIR), or tcp:127.0.0.1:0."
        )
    return UnixAddress(path)


def _parse_tcp(text: str, rest: str) -> TcpAddress:
    host, _, port = rest.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    host = "127.0.0.1" if host == "localhost" else host
    if not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise UsageError(f"{text!r} is no address: {port!r} is no port (0 to 65535; 0 means any free one)")
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        raise UsageError(f"{text!r} is no address: {host!r} is no IP address") from None
    if not loopback:
        raise UsageError(
            f"{text} is not on this machine's loopback: connections between hosts are not encrypted yet and "
            "are refused. Use tcp:127.0.0.1:PORT or unix:/path."
        )
    return TcpAddress(host, int(port))
