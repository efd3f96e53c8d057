from __future__ import annotations

import socket
import threading

import pytest

from shoal.errors import UsageError
from shoal.wire import names
from shoal.wire.addresses import TlsAddress, parse

PLAIN = ["unix:/tmp/a.sock", "tcp:127.0.0.1:0", "tcp:127.0.0.2:65535", "tcp:[::1]:80"]
ENCRYPTED = ["tls:10.0.0.1:4321", "tls:0.0.0.0:0", "tls:127.0.0.1:1", "tls:[2001:db8::1]:80", f"tls:[::]:0#{'0a' * 32}"]


@pytest.mark.parametrize("text", PLAIN + ENCRYPTED)
def test_an_address_reads_as_it_is_written(text: str) -> None:
    assert str(parse(text)) == text


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.1", "[::]", "[2001:db8::1]", "[::ffff:10.0.0.1]"])
def test_tcp_beyond_loopback_is_tls(host: str) -> None:
    """There is no way to write an address that leaves this host in the clear."""
    where = parse(f"tcp:{host}:80")
    assert isinstance(where, TlsAddress)
    assert str(where) == f"tls:{host}:80"


def test_an_address_is_spoken_of_without_its_pin() -> None:
    where = parse(ENCRYPTED[-1])
    assert isinstance(where, TlsAddress)
    assert where.place == "tls:[::]:0"


def test_localhost_is_loopback() -> None:
    assert str(parse("tcp:localhost:80")) == "tcp:127.0.0.1:80"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("/tmp/a.sock", "expected unix:/path, tcp:127.0.0.1:PORT or tls:HOST:PORT"),
        ("unix:relative", "must be absolute"),
        ("unix:/" + "x" * 200, "107 bytes, this one has 201"),
        ("tcp:127.0.0.1", "no port"),
        ("tcp:127.0.0.1:65536", "no port"),
        ("tcp:127.0.0.1:-1", "no port"),
        ("tcp:example.org:80", "no IP address"),
        ("tls:example.org:80", "no IP address"),
        ("tls:10.0.0.1", "no port"),
        ("tls:10.0.0.1:80#", "no pin"),
        ("tls:10.0.0.1:80#" + "0A" * 32, "no pin"),
        ("tls:10.0.0.1:80#" + "0a" * 33, "no pin"),
        ("tcp:127.0.0.1:80#" + "0a" * 32, "no port"),
        ("tls:[fe80::1%eth0]:80", "names a network card"),
    ],
)
def test_a_bad_address_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse(text)


@pytest.mark.parametrize(
    ("text", "host", "port"), [("gpu-7:4321", "gpu-7", 4321), ("10.0.0.1:0", "10.0.0.1", 0), ("[::1]:80", "::1", 80)]
)
def test_hosts_have_names_and_addresses_of_two_kinds(text: str, host: str, port: int) -> None:
    assert names.host_and_port(text) == (host, port)
    assert names.joined(host, port) == text


@pytest.mark.parametrize("text", ["gpu-7", "gpu-7:", ":80", "gpu-7:http", "gpu-7:65536", "::1:80"])
def test_what_is_no_host_with_a_port_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no address"):
        names.host_and_port(text)


def test_a_name_is_looked_up_within_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    assert names.lookup("2001:db8::1") == ("2001:db8::1",)
    answered = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answered.wait(60) and [])
    with pytest.raises(UsageError, match="'gpu-7' was not found within 0 s"):
        names.lookup("gpu-7", within=0.01)
    answered.set()


def test_a_name_that_means_loopback_here_is_no_address_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(2, 1, 6, "", ("127.0.1.1", 0)), (2, 1, 6, "", ("10.0.0.7", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert names.own_address("gpu-7") == "10.0.0.7"
    del found[1]
    with pytest.raises(UsageError, match=r"'gpu-7' means 127\.0\.1\.1 here, which no other host can reach"):
        names.own_address("gpu-7")
