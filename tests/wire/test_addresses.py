from __future__ import annotations

import pytest

from shoal.errors import UsageError
from shoal.wire.addresses import parse


@pytest.mark.parametrize("text", ["unix:/tmp/a.sock", "tcp:127.0.0.1:0", "tcp:127.0.0.2:65535", "tcp:[::1]:80"])
def test_an_address_reads_as_it_is_written(text: str) -> None:
    assert str(parse(text)) == text


def test_localhost_is_loopback() -> None:
    assert str(parse("tcp:localhost:80")) == "tcp:127.0.0.1:80"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("/tmp/a.sock", "expected unix:/path or tcp"),
        ("unix:relative", "must be absolute"),
        ("unix:/" + "x" * 200, "107 bytes, this one has 201"),
        ("tcp:127.0.0.1", "no port"),
        ("tcp:127.0.0.1:65536", "no port"),
        ("tcp:127.0.0.1:-1", "no port"),
        ("tcp:example.org:80", "no IP address"),
        ("tcp:0.0.0.0:80", "not on this machine's loopback"),
        ("tcp:192.168.1.1:80", "not encrypted yet"),
    ],
)
def test_a_bad_address_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse(text)
