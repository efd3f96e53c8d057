"""What the environment says about exporting spans, in the words of OpenTelemetry's own specification. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit, urlunsplit

from shoal.errors import UsageError

EXPORTER, PROTOCOL, TRACES_PROTOCOL = (
    "OTEL_TRACES_EXPORTER",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
)
ENDPOINT, TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
DISABLED, SAMPLER = "OTEL_SDK_DISABLED", "OTEL_TRACES_SAMPLER"
MOST = 250.0  # spans a second, of steps, where nobody has said how many are wanted
_OTLP = "otlp"
_DEFAULT_PROTOCOL = "http/protobuf"
# By their names among Python's entry points, and the packages that bring them.
_BY_PROTOCOL = {_DEFAULT_PROTOCOL: "otlp_proto_http", "grpc": "otlp_proto_grpc"}
_DEFAULT_ADDRESS = {"otlp_proto_http": "http://localhost:4318", "otlp_proto_grpc": "http://localhost:4317"}


def exporter_of(environ: Mapping[str, str]) -> str:
    """The name of the exporter, as packages announce it. UsageError if there is to be none."""
    if environ.get(DISABLED, "").lower() == "true":
        raise UsageError(f"--otel: {DISABLED}=true says that there are to be no spans. Unset it, or leave out --otel.")
    asked = environ.get(EXPORTER) or _OTLP
    if asked == "none":
        raise UsageError(f"--otel: {EXPORTER}=none says that there are to be no spans. Unset it, or leave out --otel.")
    if asked != _OTLP:
        return asked
    protocol = environ.get(TRACES_PROTOCOL) or environ.get(PROTOCOL) or _DEFAULT_PROTOCOL
    if protocol not in _BY_PROTOCOL:
        raise UsageError(f"--otel: {PROTOCOL}={protocol}: expected {' or '.join(_BY_PROTOCOL)}.")
    return _BY_PROTOCOL[protocol]


def most_of(environ: Mapping[str, str]) -> float:
    """Spans a second. Who has chosen a sampler gets what that chooses."""
    return float("inf") if environ.get(SAMPLER) else MOST


def target_of(environ: Mapping[str, str]) -> str:
    """Where the spans go, to be shown: without a name and a password that stand in an address."""
    name = exporter_of(environ)
    if name not in _DEFAULT_ADDRESS:
        return name
    address = environ.get(TRACES_ENDPOINT) or environ.get(ENDPOINT) or _DEFAULT_ADDRESS[name]
    parts = urlsplit(address)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
