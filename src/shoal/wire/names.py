"""From the names of hosts to addresses. The system's lookup has no deadline of its own, so it runs in a thread."""

from __future__ import annotations

import ipaddress
import queue
import socket
import threading

from shoal.errors import UsageError

WITHIN = 10.0  # seconds for one lookup


def host_and_port(text: str) -> tuple[str, int]:
    """`gpu-7:4321`, `10.0.0.1:4321` or `[2001:db8::1]:4321`."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise UsageError(f"{text!r} is no address: expected HOST:PORT, such as gpu-7:4321 or [2001:db8::1]:4321.")
    if host.startswith("[") and host.endswith("]"):
        return host[1:-1], int(port)
    if ":" in host:
        raise UsageError(f"{text!r} is no address: an IPv6 address stands in brackets, as in [2001:db8::1]:4321.")
    return host, int(port)


def joined(host: str, port: int) -> str:
    """What `host_and_port` takes apart."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def lookup(host: str, within: float = WITHIN) -> tuple[str, ...]:
    """The addresses of a host, in the system's order. UsageError if it has none, or nobody answers in time."""
    try:
        return (str(ipaddress.ip_address(host)),)
    except ValueError:
        pass
    answers: queue.Queue[tuple[str, ...] | OSError] = queue.Queue()
    threading.Thread(target=_look_up, args=(host, answers), name="shoal-lookup", daemon=True).start()
    try:
        answer = answers.get(timeout=within)
    except queue.Empty:
        raise UsageError(f"the name {host!r} was not found within {within:.0f} s: is there a name server?") from None
    if isinstance(answer, OSError):
        raise UsageError(f"there is no host {host!r}: {answer.strerror}.") from answer
    return answer


def own_address(host: str) -> str:
    """Of a host that others are to reach, by its name: not loopback, which names of one's own often mean."""
    if host == "localhost":
        return "127.0.0.1"
    found = lookup(host)
    beyond = [address for address in found if not ipaddress.ip_address(address).is_loopback]
    if not beyond and host != found[0]:
        raise UsageError(
            f"{host!r} means {found[0]} here, which no other host can reach. Give the address that others know this "
            "host by."
        )
    return (beyond or found)[0]


def is_own(address: str) -> bool:
    """Whether this address is one of this host's."""
    with socket.socket(_family(address)) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def free_address_towards(address: str) -> str | None:
    """HOST:PORT, free, of this host as that one sees it; None if there is no way there."""
    try:
        with socket.socket(_family(address), socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # which sends nothing
            own = probe.getsockname()[0]
        with socket.socket(_family(address)) as free:
            free.bind((own, 0))
            return joined(own, free.getsockname()[1])
    except OSError:
        return None


def _family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _look_up(host: str, answers: queue.Queue[tuple[str, ...] | OSError]) -> None:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        # Those that mean one network card of this host are of no use to others.
        answers.put(tuple(dict.fromkeys(str(one[4][0]) for one in found if "%" not in str(one[4][0]))))
    except (OSError, UnicodeError) as error:
        answers.put(error if isinstance(error, OSError) else OSError(0, "that is no name"))
