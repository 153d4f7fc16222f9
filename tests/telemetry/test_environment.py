"""Settings and environment variables of telemetry."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased

from ajet_core.errors import ConfigError
from ajet_installation.settings import TelemetrySettings
from ajet_server.telemetry.environment import ExportTerms, read_terms
from ajet_server.telemetry.spans import is_chosen

ON = TelemetrySettings(enabled=True)


def terms(**env: str) -> ExportTerms:
    return read_terms(ON, "server", env)


def urls(found: ExportTerms) -> list[str]:
    return [target.url for target in found.targets.values()]


def test_without_settings_the_collector_is_on_this_machine() -> None:
    found = terms()
    assert urls(found) == [f"http://localhost:4318/v1/{x}" for x in ("traces", "metrics", "logs")]
    assert (found.ratio, found.timeout, found.gzip, found.tls) == (1.0, 10.0, False, None)
    assert (found.queue, found.batch, found.delay, found.metrics_every) == (2048, 512, 5.0, 60.0)
    assert dict(found.resource)["service.name"] == "agentjet-server"


def test_the_endpoint_of_the_settings_comes_before_that_of_the_environment() -> None:
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "https://two:1/base/",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://three:1/as-it-is",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    }
    assert urls(terms(**variables)) == [
        "https://three:1/as-it-is",
        "https://two:1/base/v1/metrics",
        "https://two:1/base/v1/logs",
    ]
    settings = TelemetrySettings(enabled=True, endpoint="http://one:1/")
    assert urls(read_terms(settings, "server", variables))[0] == "http://one:1/v1/traces"


def test_headers_come_from_the_environment() -> None:
    found = terms(
        OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer%20key, x = y",
        OTEL_EXPORTER_OTLP_LOGS_HEADERS="x=z",
    )
    assert found.targets["traces"].headers == {"authorization": "Bearer key", "x": "y"}
    assert found.targets["logs"].headers == {"authorization": "Bearer key", "x": "z"}


def test_space_around_a_header_is_dropped_even_if_it_is_encoded() -> None:
    found = terms(OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer%20SECRETKEY%0A,%20x=%09y%20")
    assert found.targets["traces"].headers == {"authorization": "Bearer SECRETKEY", "x": "y"}


@pytest.mark.parametrize(
    "headers",
    ["authorization=Bearer%0ASECRETKEY", "x=SECRETKEY%00y", "x=SECRETKEY%C3%A9", "SECRETKEY%20z=="],
    ids=["newline", "zero", "not-ascii", "name"],
)
def test_a_header_that_http_does_not_allow_is_refused_without_its_value(headers: str) -> None:
    with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_HEADERS") as caught:
        terms(OTEL_EXPORTER_OTLP_HEADERS=headers)
    assert "SECRETKEY" not in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "url"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://user:pa55/w0rd@host:1"),
        ("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "user:pa55w0rd@host:1/v1/logs"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "ftp://user:pa55w0rd@host"),
    ],
    ids=["port", "no-scheme", "scheme"],
)
def test_an_endpoint_that_is_no_url_is_refused_without_its_value(variable: str, url: str) -> None:
    with pytest.raises(ConfigError, match=variable) as caught:
        terms(**{variable: url})
    assert "pa55" not in str(caught.value)


def test_signals_can_be_turned_off() -> None:
    assert list(terms(OTEL_LOGS_EXPORTER="none").targets) == ["traces", "metrics"]
    assert not terms(OTEL_SDK_DISABLED="true").targets


@pytest.mark.parametrize(
    ("setting", "env", "ratio"),
    [
        (None, {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25"}, 0.25),
        (None, {"OTEL_TRACES_SAMPLER": "parentbased_always_off"}, 0.0),
        (None, {"OTEL_TRACES_SAMPLER_ARG": "0.25"}, 1.0),
        (0.5, {"OTEL_TRACES_SAMPLER": "always_off"}, 0.5),
    ],
    ids=["ratio", "off", "no-sampler", "setting"],
)
def test_the_share_of_episodes(setting: float | None, env: dict[str, str], ratio: float) -> None:
    settings = TelemetrySettings(enabled=True, sample_ratio=setting)
    assert read_terms(settings, "server", env).ratio == ratio


def test_the_resource() -> None:
    found = dict(
        terms(OTEL_RESOURCE_ATTRIBUTES="a=b%2Cc,service.name=x", OTEL_SERVICE_NAME="y").resource
    )
    assert (found["a"], found["service.name"]) == ("b,c", "y")


@pytest.mark.parametrize(
    "env",
    [
        {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
        {"OTEL_EXPORTER_OTLP_HEADERS": "no-equals-sign"},
        {"OTEL_EXPORTER_OTLP_TIMEOUT": "soon"},
        {"OTEL_BSP_SCHEDULE_DELAY": "-1"},
        {"OTEL_BSP_SCHEDULE_DELAY": "0"},
        {"OTEL_METRIC_EXPORT_INTERVAL": "0"},
        {"OTEL_EXPORTER_OTLP_TIMEOUT": "0"},
        {"OTEL_BSP_MAX_QUEUE_SIZE": "0"},
        {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "0.5"},
        {"OTEL_EXPORTER_OTLP_CERTIFICATE": "/nowhere/ca.pem"},
    ],
    ids=[
        "grpc",
        "headers",
        "timeout",
        "delay",
        "no-delay",
        "no-interval",
        "no-timeout",
        "no-queue",
        "no-batch",
        "certificate",
    ],
)
def test_a_variable_that_cannot_be_used_is_named(env: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=next(iter(env))):
        terms(**env)


def test_a_certificate_that_is_no_certificate_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("none", encoding="utf-8")
    with pytest.raises(ConfigError):
        terms(OTEL_EXPORTER_OTLP_CERTIFICATE=str(file))


@given(st.binary(min_size=16, max_size=16).filter(any), st.floats(0, 1))
def test_an_sdk_with_the_same_ratio_chooses_the_same_traces(trace: bytes, ratio: float) -> None:
    number = int.from_bytes(trace, "big")
    decision = TraceIdRatioBased(ratio).should_sample(None, number, "a").decision
    assert is_chosen(trace, ratio) == (decision is Decision.RECORD_AND_SAMPLE)
