"""Who may ask for what. Pure.

The page listens on loopback, where every user and every web page that a user visits can send to it. So:

    names     a request must be meant for a loopback name: no page of elsewhere gets in by a name that points here
    origin    what a browser sends for another page, of whatever port, is refused
    token     whatever tells or changes something needs it; in a header, which no other page can send, and for /metrics
              in the query too. It is compared in constant time. The page itself and its files hold nothing secret.
"""

from __future__ import annotations

import hmac
from http import HTTPStatus
from typing import NamedTuple

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_OPEN = ("/", "/static/")  # nothing in it is secret
_METRICS = "/metrics"


class AskedPage(NamedTuple):
    """What counts of a request."""

    path: str
    host: str = ""
    origin: str | None = None
    site: str | None = None  # Sec-Fetch-Site
    authorization: str = ""
    query_token: str = ""


class Denial(NamedTuple):
    """Why not."""

    status: HTTPStatus
    text: str


def deny(asked: AskedPage, token: str) -> Denial | None:
    """None: it may go on."""
    if _name(asked.host) not in _LOOPBACK:
        return Denial(HTTPStatus.MISDIRECTED_REQUEST, "this server is for 127.0.0.1 and localhost only")
    if asked.origin is not None and asked.origin != f"http://{asked.host}":
        return Denial(HTTPStatus.FORBIDDEN, "another page has sent this")
    if is_open(asked.path):
        return None
    if asked.site not in (None, "same-origin", "none"):
        return Denial(HTTPStatus.FORBIDDEN, "another page has sent this")
    if not _knows(asked, token):
        return Denial(HTTPStatus.UNAUTHORIZED, "the token is missing or wrong: use the whole address that was printed")
    return None


def is_open(path: str) -> bool:
    return path == _OPEN[0] or path.startswith(_OPEN[1])


def _name(host: str) -> str:
    """Of HOST or HOST:PORT. Any port: a tunnel may have another."""
    name, colon, port = host.rpartition(":")
    return name.lower() if colon and port.isdecimal() else host.lower()


def _knows(asked: AskedPage, token: str) -> bool:
    scheme, _, told = asked.authorization.partition(" ")
    given = told.strip() if scheme.lower() == "bearer" else ""
    if not given and asked.path == _METRICS:
        given = asked.query_token
    return hmac.compare_digest(given.encode(errors="replace"), token.encode())
