from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from shoal.errors import UsageError
from shoal.wire import JoinToken, Pin, RunCertificate, RunKey

from .scene import CERTIFICATE

TICKET = JoinToken("digits-3f2a", RunKey(b"k" * 32), CERTIFICATE.pin)


def test_a_certificate_goes_through_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    CERTIFICATE.save(tmp_path / "certificate")
    assert stat.S_IMODE((tmp_path / "certificate").stat().st_mode) == 0o600
    assert RunCertificate.load(tmp_path / "certificate").pin == CERTIFICATE.pin != RunCertificate.new().pin
    with pytest.raises(FileExistsError):
        CERTIFICATE.save(tmp_path / "certificate")


def test_the_pin_is_the_fingerprint_that_other_tools_show(tmp_path: Path) -> None:
    CERTIFICATE.save(tmp_path / "certificate")
    shown = x509.load_pem_x509_certificate((tmp_path / "certificate").read_bytes())
    assert shown.fingerprint(hashes.SHA256()) == CERTIFICATE.pin.digest
    assert isinstance(shown.public_key(), ec.EllipticCurvePublicKey)
    assert Pin.parse(str(CERTIFICATE.pin)) == CERTIFICATE.pin


def test_a_certificate_does_not_show_its_private_key() -> None:
    assert repr(CERTIFICATE) == f"RunCertificate({CERTIFICATE.pin})"


@pytest.mark.parametrize("harm", ["empty", "cut", "two certificates", "no key", "words", "crlf"])
def test_a_certificate_file_that_is_not_ours_is_refused(harm: str, tmp_path: Path) -> None:
    CERTIFICATE.save(tmp_path / "good")
    good = (tmp_path / "good").read_bytes()
    at = good.index(b"-----BEGIN CERT")
    bad = {
        "empty": b"",
        "cut": good[:-40],
        "two certificates": good + good[at:],
        "no key": good[at:],
        "words": b"hello\n" + good,
        "crlf": good.replace(b"\n", b"\r\n"),
    }[harm]
    (tmp_path / "bad").write_bytes(bad)
    (tmp_path / "bad").chmod(0o600)
    with pytest.raises(UsageError, match=r"the certificate file .* is malformed"):
        RunCertificate.load(tmp_path / "bad")


def test_a_token_goes_through_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    TICKET.save(tmp_path / "ticket")
    assert stat.S_IMODE((tmp_path / "ticket").stat().st_mode) == 0o600
    assert JoinToken.load(tmp_path / "ticket") == JoinToken.load(tmp_path / "ticket", run="digits-3f2a") == TICKET
    assert "6b6b" not in repr(TICKET)  # the key does not show itself


def test_a_token_of_another_run_is_refused(tmp_path: Path) -> None:
    TICKET.save(tmp_path / "ticket")
    with pytest.raises(UsageError, match="is for another run: it is for digits-3f2a, not for letters-0001"):
        JoinToken.load(tmp_path / "ticket", run="letters-0001")


def text(token: JoinToken) -> str:
    return f"shoal ticket 1\nrun: {token.run}\nkey: {token.key.hex()}\ncertificate: {token.pin}\n"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "malformed"),
        (text(TICKET)[:-1], "malformed"),
        (text(TICKET) + "\n", "malformed"),
        (text(TICKET).replace("6b", "6B"), "malformed"),
        (text(TICKET).replace("digits", "../digits"), "malformed"),
        (text(TICKET).replace("\n", "\r\n"), "malformed"),
        (text(TICKET).replace("key: 6b", "key: "), "malformed"),
        (text(TICKET).replace("digits", "digité"), "malformed"),
        ("\x00" * 300, "malformed"),
        (text(TICKET).replace("ticket 1", "ticket 2"), "has version 2, this Shoal reads version 1"),
        (text(TICKET) * 10, "more than 1,024 bytes"),
    ],
)
def test_a_malformed_token_is_refused(content: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "ticket").write_bytes(content.encode())
    (tmp_path / "ticket").chmod(0o600)
    with pytest.raises(UsageError, match=why):
        JoinToken.load(tmp_path / "ticket")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666, 0o620])
def test_a_secret_that_others_may_read_is_refused(mode: int, tmp_path: Path) -> None:
    TICKET.save(tmp_path / "ticket")
    (tmp_path / "ticket").chmod(mode)
    with pytest.raises(UsageError, match=f"readable by others: expected mode 0600 .* found mode {mode:04o}"):
        JoinToken.load(tmp_path / "ticket")


def test_a_secret_is_a_file_and_nothing_else(tmp_path: Path) -> None:
    TICKET.save(tmp_path / "ticket")
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(UsageError, match="no regular file"):
        JoinToken.load(tmp_path / "pipe")  # and does not wait for somebody to write into it
    with pytest.raises(UsageError, match="No such file"):
        JoinToken.load(tmp_path / "none")


def test_a_ticket_may_lie_behind_links_as_kubernetes_mounts_secrets(tmp_path: Path) -> None:
    (tmp_path / "..2026_11").mkdir()
    TICKET.save(tmp_path / "..2026_11" / "ticket")
    (tmp_path / "..data").symlink_to("..2026_11")
    (tmp_path / "ticket").symlink_to("..data/ticket")
    assert JoinToken.load(tmp_path / "ticket") == TICKET
    (tmp_path / "..2026_11" / "ticket").chmod(0o644)
    with pytest.raises(UsageError, match="readable by others"):
        JoinToken.load(tmp_path / "ticket")


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can give a link to somebody")
def test_no_link_of_another_user_is_followed(tmp_path: Path) -> None:
    TICKET.save(tmp_path / "ticket")
    (tmp_path / "theirs").symlink_to(tmp_path)
    os.lchown(tmp_path / "theirs", 4321, 4321)
    (tmp_path / "mine").symlink_to("theirs/ticket")
    for path in ("theirs/ticket", "mine"):
        with pytest.raises(UsageError, match=r"behind a link of user 4321, .*theirs"):
            JoinToken.load(tmp_path / path)


def test_a_run_whose_name_has_no_place_in_a_token_is_refused() -> None:
    for name in ("", "two\nlines", "a b", "x" * 200):
        with pytest.raises(UsageError, match="can't be the run's name"):
            JoinToken(name, RunKey.new(), CERTIFICATE.pin)
