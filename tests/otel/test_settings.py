"""Whoever has configured OpenTelemetry has configured this."""

from __future__ import annotations

import pytest

from shoal.errors import UsageError
from shoal.otel.extra import find_exporter
from shoal.otel.settings import MOST, exporter_of, most_of, target_of


def test_without_a_word_it_is_otlp_over_http_to_this_host() -> None:
    assert exporter_of({}) == "otlp_proto_http"
    assert target_of({}) == "http://localhost:4318"


def test_the_exporter_is_the_one_that_is_asked_for() -> None:
    assert exporter_of({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}) == "otlp_proto_grpc"
    both = {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}
    assert exporter_of(both) == "otlp_proto_http"
    assert exporter_of({"OTEL_TRACES_EXPORTER": "console"}) == "console"


def test_an_address_for_traces_comes_before_the_one_for_everything() -> None:
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://all:1", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://traces:2/x"}
    assert target_of(environ) == "http://traces:2/x"


def test_who_chooses_a_sampler_gets_all_that_it_chooses() -> None:
    assert most_of({}) == MOST < float("inf")
    assert most_of({"OTEL_TRACES_SAMPLER": "always_on"}) == float("inf")


def test_a_password_in_an_address_is_not_shown() -> None:
    assert target_of({"OTEL_EXPORTER_OTLP_ENDPOINT": "https://me:secret@there:4318/x?key=1"}) == "https://there:4318/x"


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"OTEL_SDK_DISABLED": "true"}, "OTEL_SDK_DISABLED=true"),
        ({"OTEL_TRACES_EXPORTER": "none"}, "OTEL_TRACES_EXPORTER=none"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "smoke"}, "expected http/protobuf or grpc"),
    ],
)
def test_what_contradicts_the_option_is_refused(environ: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        exporter_of(environ)


def test_an_exporter_that_is_not_installed_is_named_with_what_to_install() -> None:
    with pytest.raises(UsageError, match="pip install opentelemetry-exporter-otlp-proto-nowhere"):
        find_exporter({"OTEL_TRACES_EXPORTER": "otlp_proto_nowhere"})
