"""Addresses are strings. Port 0 means any free one.

    unix:/path/to/socket            this host
    tcp:127.0.0.1:4321              this host; plain, so loopback only
    tls:10.0.0.1:4321               any host; encrypted
    tls:[2001:db8::1]:4321#3f2a…    the same, with the pin of the certificate that listens there

A `tcp:` address beyond loopback is read as `tls:`: nothing leaves a host in the clear. Hosts are IP addresses here:
names are looked up at the door (names.py).
"""

from __future__ import annotations

import ipaddress
import os
import socket
from dataclasses import dataclass

from shoal.errors import UsageError
from shoal.wire.certificates import Pin

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


@dataclass(frozen=True, slots=True)
class TlsAddress:
    host: str
    port: int
    pin: Pin | None = None  # of the certificate that listens there

    @property
    def family(self) -> int:
        return socket.AF_INET6 if ":" in self.host else socket.AF_INET

    @property
    def target(self) -> tuple[str, int]:
        return (self.host, self.port)

    @property
    def everywhere(self) -> bool:
        """Whether it means every address of a host, where one may listen but nobody can connect."""
        return ipaddress.ip_address(self.host).is_unspecified

    @property
    def place(self) -> str:
        """The address without the pin, to speak about."""
        return f"tls:[{self.host}]:{self.port}" if ":" in self.host else f"tls:{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.place}#{self.pin}" if self.pin else self.place


Address = UnixAddress | TcpAddress | TlsAddress


def parse(text: str) -> Address:
    """The address that `text` names; a UsageError says what is wrong with it and what would be right."""
    scheme, _, rest = text.partition(":")
    if scheme == "unix":
        return _parse_unix(rest)
    if scheme == "tcp":
        host, port = _parse_host_and_port(text, rest)
        return TcpAddress(host, port) if ipaddress.ip_address(host).is_loopback else TlsAddress(host, port)
    if scheme == "tls":
        rest, marked, pin = rest.partition("#")
        return TlsAddress(*_parse_host_and_port(text, rest), Pin.parse(pin) if marked else None)
    raise UsageError(f"{text!r} is no address: expected unix:/path, tcp:127.0.0.1:PORT or tls:HOST:PORT")


def _parse_unix(path: str) -> UnixAddress:
    if not path.startswith("/"):
        raise UsageError(f"unix:{path} is no address: the path must be absolute")
    if len(os.fsencode(path)) > _UNIX_PATH_MAX:
        raise UsageError(
            f"the path of a unix socket may have {_UNIX_PATH_MAX} bytes, this one has "
            f"{len(os.fsencode(path))}: {path}. Use a shorter folder (TMPDIR), or tcp:127.0.0.1:0."
        )
    return UnixAddress(path)


def _parse_host_and_port(text: str, rest: str) -> tuple[str, int]:
    host, _, port = rest.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    host = "127.0.0.1" if host == "localhost" else host
    if not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise UsageError(f"{text!r} is no address: {port!r} is no port (0 to 65535; 0 means any free one)")
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        raise UsageError(f"{text!r} is no address: {host!r} is no IP address") from None
    if isinstance(ip, ipaddress.IPv6Address) and ip.scope_id:
        raise UsageError(f"{text!r} names a network card; give an address that is the same on all hosts")
    return host, int(port)


def needs_certificate(address: str) -> bool:
    """Whether who listens there must show a certificate: it can be reached from other hosts."""
    return isinstance(parse(address), TlsAddress)


def any_port(host: str) -> str:
    """Some free port of this host's address; encrypted, unless it is loopback."""
    return f"tcp:[{host}]:0" if ":" in host else f"tcp:{host}:0"
