"""A run's certificate: what a listener between hosts shows, and the pin by which the others know it.

It is signed by itself and names no host: who connects compares its SHA-256 with a pin that came on a trusted way (a
join token, or an address that a proven member announced). Authorities, names and dates decide nothing, so neither a
wrong clock nor somebody's root certificate can let a stranger in or keep a member out.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import hashlib
import hmac
import os
import re
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import UsageError
from shoal.wire import private

_DAYS = 90  # written into the certificate for others' tools; the pin ends with the run
_LEEWAY = datetime.timedelta(days=1)
_MAX_BYTES = 16 << 10
_PIN_BYTES = 32
_HEX = re.compile(r"[0-9a-f]{64}")
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----\n([A-Za-z0-9+/=\n]+)-----END CERTIFICATE-----\n")
_SECRET = re.compile(rb"-----BEGIN PRIVATE KEY-----\n[A-Za-z0-9+/=\n]+-----END PRIVATE KEY-----\n")


@dataclass(frozen=True, slots=True)
class Pin:
    """The SHA-256 of a certificate. No secret: it says whom to trust, not how to be trusted."""

    digest: bytes

    def __post_init__(self) -> None:
        if len(self.digest) != _PIN_BYTES:
            raise UsageError(f"a certificate's pin has {_PIN_BYTES} bytes, not {len(self.digest)}")

    @classmethod
    def of(cls, certificate: bytes) -> Pin:
        """The pin of a certificate in its binary form (DER)."""
        return cls(hashlib.sha256(certificate).digest())

    @classmethod
    def parse(cls, text: str) -> Pin:
        if not _HEX.fullmatch(text):
            raise UsageError(f"{text[:80]!r} is no pin of a certificate: expected 64 digits of 0-9 and a-f")
        return cls(bytes.fromhex(text))

    def matches(self, other: Pin) -> bool:
        return hmac.compare_digest(self.digest, other.digest)

    def __str__(self) -> str:
        return self.digest.hex()


class RunCertificate:
    """A certificate and its private key, made for one run (ECDSA, P-256)."""

    __slots__ = ("_pem", "pin")

    def __init__(self, pem: bytes) -> None:
        """`pem`: one private key and one certificate, as `new` makes them; UsageError if it is anything else."""
        certificate = _CERTIFICATE.search(pem)
        secret = _SECRET.match(pem)
        if not secret or not certificate or len(secret[0]) + len(certificate[0]) != len(pem):
            raise UsageError("malformed: expected one private key and one certificate (PEM)")
        try:
            self.pin = Pin.of(base64.b64decode(certificate[1].replace(b"\n", b""), validate=True))
        except binascii.Error as error:
            raise UsageError(f"malformed: {error}") from error
        self._pem = pem

    def __repr__(self) -> str:
        return f"RunCertificate({self.pin})"

    @classmethod
    def new(cls) -> RunCertificate:
        # Here, since it takes 50 ms to import and only the process that starts a run makes a certificate.
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        secret = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "shoal run")])
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(secret.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _LEEWAY)
            .not_valid_after(now + datetime.timedelta(days=_DAYS))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .sign(secret, hashes.SHA256())
        )
        encoded = secret.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return cls(encoded + certificate.public_bytes(serialization.Encoding.PEM))

    def save(self, path: Path) -> None:
        """Write certificate and private key to a new file that only its owner may read."""
        private.write_new(path, self._pem)

    @classmethod
    def load(cls, path: Path) -> RunCertificate:
        """What `save` wrote; UsageError if others may read it or it is something else."""
        pem = private.read(path, _MAX_BYTES, "the certificate file")
        try:
            return cls(pem)
        except UsageError as error:
            raise UsageError(f"the certificate file {path} is {error}") from error

    def open(self) -> int:
        """A descriptor with the PEM, for OpenSSL, which reads certificates from files only. The caller closes it."""
        descriptor = os.memfd_create("shoal-certificate", os.MFD_CLOEXEC)
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(self._pem)
        return descriptor
