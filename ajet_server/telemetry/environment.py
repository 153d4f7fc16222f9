"""Where and how to export: the settings, and the environment variables of OpenTelemetry."""

from __future__ import annotations

import os
import re
import socket
import ssl
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote

import httpx2

from ajet_core import __version__
from ajet_core.errors import ConfigError
from ajet_installation.settings import TelemetrySettings
from ajet_server.telemetry.spans import Attributes

Signal = Literal["traces", "metrics", "logs"]
SIGNALS: tuple[Signal, ...] = ("traces", "metrics", "logs")
_DEFAULT_ENDPOINT = "http://localhost:4318"
# Seconds. OpenTelemetry's SDKs refuse intervals of 0 as well.
_SHORTEST = 0.001
_RATIO_SAMPLERS = ("traceidratio", "parentbased_traceidratio")
# What HTTP allows in a header. The names are those of tokens in RFC 9110.
_HEADER_NAME = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*")


@dataclass(frozen=True, slots=True)
class Target:
    """Where the records of a signal are sent; `url` and `headers` may hold secrets.

    :param place: the URL without user, password, query and fragment, for messages.
    """

    url: str
    headers: Mapping[str, str]
    place: str


@dataclass(frozen=True, slots=True)
class ExportTerms:
    """How to export.

    :param targets: by signal; a signal without one is not exported.
    :param ratio: share of the episodes whose traces are exported.
    :param timeout: seconds for a request.
    :param gzip: whether requests are compressed.
    :param tls: None trusts the authorities of the operating system.
    :param queue: most records of a kind that wait.
    :param batch: most records of a request.
    :param delay: seconds between exports.
    :param metrics_every: seconds between exports of metrics.
    :param resource: attributes of this process.
    """

    targets: Mapping[Signal, Target]
    ratio: float
    timeout: float
    gzip: bool
    tls: ssl.SSLContext | None
    queue: int
    batch: int
    delay: float
    metrics_every: float
    resource: Attributes


def read_terms(
    settings: TelemetrySettings, process: str, environ: Mapping[str, str] = os.environ
) -> ExportTerms:
    """Read the settings and the environment.

    :param process: names this kind of process, as in ``agentjet-server``.
    :raises ConfigError: a variable has a value that cannot be used.
    """
    env = {name: value for name, value in environ.items() if value}
    off = env.get("OTEL_SDK_DISABLED", "").lower() == "true"
    targets = {
        signal: _target(settings, signal, env)
        for signal in SIGNALS
        if not off and env.get(f"OTEL_{signal.upper()}_EXPORTER") != "none"
    }
    return ExportTerms(
        targets=targets,
        ratio=_ratio(settings, env),
        timeout=_number(env, "OTEL_EXPORTER_OTLP_TIMEOUT", 10, least=_SHORTEST),
        gzip=env.get("OTEL_EXPORTER_OTLP_COMPRESSION") == "gzip",
        tls=_tls(env),
        queue=int(_number(env, "OTEL_BSP_MAX_QUEUE_SIZE", 2048, least=1)),
        batch=int(_number(env, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512, least=1)),
        delay=_number(env, "OTEL_BSP_SCHEDULE_DELAY", 5000, least=1) / 1000,
        metrics_every=_number(env, "OTEL_METRIC_EXPORT_INTERVAL", 60_000, least=1) / 1000,
        resource=_resource(process, env),
    )


def _target(settings: TelemetrySettings, signal: Signal, env: Mapping[str, str]) -> Target:
    base = settings.endpoint or env.get("OTEL_EXPORTER_OTLP_ENDPOINT", _DEFAULT_ENDPOINT)
    url = f"{base.rstrip('/')}/v1/{signal}"
    name = "OTEL_EXPORTER_OTLP_ENDPOINT" if settings.endpoint is None else "telemetry.endpoint"
    own = f"OTEL_EXPORTER_OTLP_{signal.upper()}"
    if settings.endpoint is None:
        if f"{own}_ENDPOINT" in env:
            name = f"{own}_ENDPOINT"
            url = env[name]
        protocol = env.get(f"{own}_PROTOCOL", env.get("OTEL_EXPORTER_OTLP_PROTOCOL"))
        if protocol not in {None, "http/protobuf"}:
            raise ConfigError(
                f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol}, but agentjet sends http/protobuf: set "
                "telemetry.endpoint to the collector's URL for it, such as http://HOST:4318",
                param="telemetry.endpoint",
            )
    headers = {
        **_headers(env, "OTEL_EXPORTER_OTLP_HEADERS"),
        **_headers(env, f"{own}_HEADERS"),
    }
    return Target(url, headers, _place(name, url))


def _place(name: str, url: str) -> str:
    """Return a URL without what may be secret.

    :param name: the setting or variable that it comes from.
    """
    try:
        read = httpx2.URL(url)
    except httpx2.InvalidURL:
        read = httpx2.URL()
    if read.scheme not in {"http", "https"} or not read.host:
        # Neither the URL nor why it is refused, which may quote parts of it.
        raise ConfigError(f"{name} is not an http or https URL", param="telemetry.endpoint")
    return str(read.copy_with(userinfo=b"", query=None, fragment=None))


def _headers(env: Mapping[str, str], name: str) -> dict[str, str]:
    headers = _pairs(env, name)
    for key, value in headers.items():
        # A name may be a secret as well, if the variable has another form than it should.
        if not _HEADER_NAME.fullmatch(key):
            raise ConfigError(f"{name} has a name that HTTP does not allow", param="telemetry")
        if not _HEADER_VALUE.fullmatch(value):
            raise ConfigError(
                f"{name}: the value of {key} has control characters or characters outside ASCII",
                param="telemetry",
            )
    return headers


def _pairs(env: Mapping[str, str], name: str) -> dict[str, str]:
    """Return ``a=1,b=2``; keys and values are percent-encoded, without space around them."""
    pairs = {}
    for pair in filter(None, env.get(name, "").split(",")):
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"{name} is not of the form key=value,key=value", param="telemetry")
        pairs[unquote(key).strip()] = unquote(value).strip()
    return pairs


def _number(env: Mapping[str, str], name: str, default: float, least: float = 0.0) -> float:
    try:
        value = float(env.get(name, default))
    except ValueError:
        value = -1.0
    if not least <= value < float("inf"):
        raise ConfigError(
            f"{name}: {env[name]!r} is not a number of at least {least:g}", param="telemetry"
        )
    return value


def _ratio(settings: TelemetrySettings, env: Mapping[str, str]) -> float:
    if settings.sample_ratio is not None:
        return settings.sample_ratio
    sampler = env.get("OTEL_TRACES_SAMPLER", "")
    if sampler.endswith("always_off"):
        return 0.0
    if sampler in _RATIO_SAMPLERS:
        return min(1.0, _number(env, "OTEL_TRACES_SAMPLER_ARG", 1))
    return 1.0


def _tls(env: Mapping[str, str]) -> ssl.SSLContext | None:
    authority = env.get("OTEL_EXPORTER_OTLP_CERTIFICATE")
    certificate = env.get("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE")
    if not (authority or certificate):
        return None
    try:
        context = ssl.create_default_context(cafile=authority)
        if certificate:
            context.load_cert_chain(certificate, env.get("OTEL_EXPORTER_OTLP_CLIENT_KEY"))
    except OSError as error:  # includes ssl.SSLError
        raise ConfigError(
            f"cannot use the certificates of OTEL_EXPORTER_OTLP_CERTIFICATE: {error}",
            param="telemetry",
        ) from error
    return context


def _resource(process: str, env: Mapping[str, str]) -> Attributes:
    attributes: dict[str, str | int] = {
        "service.name": f"agentjet-{process}",
        "service.version": __version__,
        "service.instance.id": str(uuid.uuid4()),
        "host.name": socket.gethostname(),
        "process.pid": os.getpid(),
        **_pairs(env, "OTEL_RESOURCE_ATTRIBUTES"),
    }
    if name := env.get("OTEL_SERVICE_NAME"):
        attributes["service.name"] = name
    return tuple(attributes.items())
