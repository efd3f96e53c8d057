"""Exporting spans needs packages that training does not."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec

from shoal.errors import UsageError
from shoal.otel.settings import exporter_of

_GROUP = "opentelemetry_traces_exporter"


def require(environ: Mapping[str, str]) -> None:
    """UsageError if they are not installed."""
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
        raise UsageError("--otel needs opentelemetry-sdk, which is not installed: pip install 'shoal[otel]'")
    find_exporter(environ)


def find_exporter(environ: Mapping[str, str]) -> EntryPoint:
    """The one that the environment asks for."""
    name = exporter_of(environ)
    for found in entry_points(group=_GROUP, name=name):
        return found
    there = ", ".join(sorted({one.name for one in entry_points(group=_GROUP)})) or "none"
    package = f"pip install opentelemetry-exporter-{name.replace('_', '-')}"
    raise UsageError(f"--otel: there is no exporter {name} here; installed: {there}. To add it: {package}")
