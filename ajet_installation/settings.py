"""Settings of this installation: flags over environment over ``ajet.toml`` over defaults.

In the environment a key is ``AJET_`` and its path joined by two underscores
(``AJET_SERVER__PORT=8700``); lists and tables are JSON. `Settings` raises
`ajet_core.errors.ConfigError`, which names the key and where its value came from.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from ajet_core.credentials import LOOPBACK_HOSTS
from ajet_installation.settings_layers import ENV_PREFIX, Layers, config_error, leaves

__all__ = [
    "AJET_KEY",
    "HOST_PORT",
    "MASK",
    "SECRET_KEY",
    "AlertSettings",
    "ClientSettings",
    "CostSettings",
    "FastPath",
    "GatewaySettings",
    "ModelServerSettings",
    "PeerSettings",
    "PluginSettings",
    "Price",
    "Seconds",
    "ServerSettings",
    "SettingOrigin",
    "Settings",
    "StoreSettings",
    "TelemetrySettings",
    "TokenPrice",
    "WeightSettings",
    "WorkerSettings",
    "host_and_port",
]

SECRET_KEY = re.compile(r"password|secret|token|credential|dsn|api_?key", re.IGNORECASE)
AJET_KEY = re.compile(r"(?P<kind>ajet-(?:ep|tk|ct|cl)-)[\w.~+/=-]+")
"""Matches the keys of episodes and the tokens that servers generate, wherever a text has them."""
MASK = "**********"
"""Displayed instead of a secret."""

HOST_PORT = r"^\S+:\d{1,5}$"
"""An address, as a regular expression."""

Seconds = Annotated[float, Field(gt=0)]
Price = Annotated[float, Field(ge=0)]
FastPath = Literal["words", "collector"]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class PeerSettings(_Section):
    """Another swarm server, which this one queries for the outcomes of joint episodes.

    :param url: URL of the server.
    :param token: any of its tokens, preferably of the scope ``view``; not needed for a server of
        the same user on the same machine.
    :param insecure: allow a host that is not loopback without TLS.
    """

    url: str
    token: SecretStr | None = None
    insecure: bool = False

    @model_validator(mode="after")
    def _is_protected(self) -> Self:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise ValueError(f"not a valid server URL: {self.url!r}")
        if parts.scheme == "http" and not (self.insecure or _is_loopback(parts.hostname)):
            raise ValueError(
                f"the token would be sent to {self.url!r} in the clear: use https, or, in a "
                "network you trust, set insecure = true"
            )
        return self


class ServerSettings(_Section):
    """The swarm server.

    :param host: the address to listen on.
    :param port: 0 uses any free port.
    :param run_dir: directory for everything that a run writes; relative to the working directory.
    :param model_roots: directories that a run's model may be in, besides `run_dir`.
    :param public_url: the base URL for episodes if the server is behind a proxy.
    :param tls_cert: file with the certificate chain, in PEM; requires `tls_key`.
    :param tls_key: file with its private key, in PEM.
    :param insecure: allow a host that is not loopback without TLS.
    :param control_token: the token of operators; random if not set.
    :param client_token: the token of clients; random if not set.
    :param max_body_bytes: larger requests are refused with 413.
    :param max_open_episodes: maximum number of open episodes; further claims are refused with 429.
    :param max_waiting_claims: maximum number of claims that wait; more are refused with 429.
    :param max_calls_at_once: concurrent model calls of one episode; more are refused with 429.
    :param max_calls_per_episode: model calls of one episode; more are refused with 429.
    :param max_episode_seconds: maximum time from an episode's claim; then it is aborted with the
        cause ``timeout``.
    :param max_reward: maximum absolute value of a reward, of its components, and of rewards for
        calls and agents; an end with a larger one is refused with 400.
    :param max_event_streams: maximum number of concurrent readers of events and running calls.
    :param max_connections: maximum number of open connections of all clients.
    :param max_bytes_in_flight: maximum total size of request bodies being read or answered.
    :param request_seconds: maximum time for a client to send the head of a request; to send a body,
        plus a second for every 16 KiB of it; to read the next 64 KiB of an answer.
    :param call_deadline_seconds: maximum duration of a model call, including waits for weights.
    :param stream_heartbeat_seconds: maximum silence of a model call's stream before a heartbeat is
        sent, because clients close silent streams. 0 disables heartbeats.
    :param boot_timeout_seconds: maximum time for a worker to load its model.
    :param step_timeout_seconds: maximum duration of a training step, a checkpoint or an export
        before the worker is replaced.
    :param engine_stall_seconds: maximum time without progress of an engine while calls wait for it.
    :param stuck_seconds: time without progress after which the cause is logged and sent as an
        event.
    :param logger_seconds: time after which a call of a metrics logger is reported, and after which
        its constructor counts as failed, so that the server does not start.
    :param logger_close_seconds: maximum time that the ends of a run and of the server wait for all
        metrics loggers.
    :param logger_queue: maximum number of records that wait for a metrics logger; then the oldest
        are dropped.
    :param system_metrics_seconds: period at which metrics loggers get measurements of the machine
        (docs/metrics.md); 0 for none.
    :param orphan_seconds: how long workers wait for a server that is restarted after it was killed,
        so that it need not load libraries and the model again; 0 ends them at once.
    :param processes: number of gateway processes, which answer agents' calls (docs/scale.md); with
        1, the server process answers them itself. `max_connections` and `max_bytes_in_flight` apply
        to each process. More than 1 requires Linux, and excludes `tls_cert`.
    :param gateways_listen: ``HOST:PORT`` at which gateways on other machines connect
        (``ajet gateway``, docs/scale.md), which then answer agents' calls instead of this server.
        Requires `gateway_token` and `public_url`, the URL of the gateways or of the load balancer
        in front of them. Requires Linux, and excludes `processes`.
    :param gateway_token: a secret of the server and its gateways.
    :param peers: the other servers of joint episodes, by the names that clients give them; they are
        queried about joint episodes in doubt.
    :param fast_paths: ways of saving CPU time (`ajet_server.fastpath`) that are used; without them
        the server answers the same.
    :param worker_restarts: consecutive deaths of a worker after which the run fails.
    :param log_level: the least severe messages that the server logs.
    """

    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8642
    run_dir: Path = Path("runs/default")
    model_roots: list[Path] = Field(default_factory=list)
    public_url: str | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    insecure: bool = False
    control_token: SecretStr | None = None
    client_token: SecretStr | None = None
    max_body_bytes: Annotated[int, Field(ge=1024)] = 16 * 1024 * 1024
    max_open_episodes: Annotated[int, Field(ge=1)] = 10000
    max_waiting_claims: Annotated[int, Field(ge=1)] = 2000
    max_calls_at_once: Annotated[int, Field(ge=1)] = 256
    max_calls_per_episode: Annotated[int, Field(ge=1)] = 10000
    max_episode_seconds: Seconds = 86400.0
    max_reward: Annotated[float, Field(gt=0, le=1e12)] = 1e6
    max_event_streams: Annotated[int, Field(ge=1)] = 256
    max_connections: Annotated[int, Field(ge=1)] = 16384
    max_bytes_in_flight: Annotated[int, Field(ge=1024)] = 1024 * 1024 * 1024
    request_seconds: Seconds = 60.0
    call_deadline_seconds: Seconds = 600.0
    stream_heartbeat_seconds: Annotated[float, Field(ge=0, le=3600)] = 15.0
    boot_timeout_seconds: Seconds = 300.0
    step_timeout_seconds: Seconds = 7200.0
    engine_stall_seconds: Seconds = 180.0
    stuck_seconds: Seconds = 60.0
    logger_seconds: Seconds = 30.0
    logger_close_seconds: Annotated[float, Field(gt=0, le=600)] = 5.0
    logger_queue: Annotated[int, Field(ge=1)] = 10000
    system_metrics_seconds: Annotated[float, Field(ge=0)] = 15.0
    orphan_seconds: Annotated[float, Field(ge=0, le=3600)] = 15.0
    fast_paths: tuple[FastPath, ...] = ("words", "collector")
    worker_restarts: Annotated[int, Field(ge=0)] = 3
    processes: Annotated[int, Field(ge=1, le=64)] = 1
    gateways_listen: Annotated[str, Field(pattern=HOST_PORT)] | None = None
    gateway_token: SecretStr | None = None
    peers: dict[str, PeerSettings] = Field(default_factory=dict)
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @model_validator(mode="after")
    def _is_protected(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key must be set together")
        if self.processes > 1 and self.tls_cert:
            raise ValueError(
                "tls_cert cannot be used with several processes: let a proxy terminate TLS, and "
                "set public_url"
            )
        hosts = {"host": self.host}
        if self.gateways_listen is not None:
            hosts["gateways_listen"] = host_and_port(self.gateways_listen)[0]
            self._can_have_gateways()
        for name, host in hosts.items():
            if not (self.insecure or self.tls_cert or _is_loopback(host)):
                raise ValueError(
                    f"{name} {host!r} is reachable from other machines, but tokens and data "
                    "would be sent in the clear: set tls_cert and tls_key, or listen on "
                    "127.0.0.1, or, in a network you trust, set insecure = true (--insecure)"
                )
        return self

    def _can_have_gateways(self) -> None:
        if self.processes > 1:
            raise ValueError(
                "processes and gateways_listen exclude each other: start more gateways instead"
            )
        if self.gateway_token is None:
            raise ValueError("gateways_listen requires gateway_token, which gateways also need")
        if self.public_url is None:
            raise ValueError(
                "gateways_listen requires public_url, the URL of the gateways or of the load "
                "balancer in front of them: the episodes' calls are sent there"
            )

    @property
    def divided(self) -> bool:
        """Whether other processes answer the calls of agents."""
        return self.processes > 1 or self.gateways_listen is not None


class GatewaySettings(_Section):
    """A gateway on another machine than its server (``ajet gateway``, docs/scale.md).

    It listens as `server.host`, `server.port` and the certificate of that section say, and has the
    limits of that section.

    :param server: ``HOST:PORT`` of the server's `server.gateways_listen`.
    :param tls: whether the server uses TLS there; its certificate must be valid for the host.
    :param url: the URL at which the server's other gateways reach this one.
    """

    server: Annotated[str, Field(pattern=HOST_PORT)] | None = None
    tls: bool = False
    url: Annotated[str, Field(pattern=r"^https?://[^/]+$")] | None = None


class TelemetrySettings(_Section):
    """What a server or gateway sends to a collector of OpenTelemetry (docs/telemetry.md).

    Headers, such as a key of the collector, are read from ``OTEL_EXPORTER_OTLP_HEADERS`` only.

    :param enabled: send traces, metrics and logs. Requires the extra ``otel``.
    :param endpoint: base URL of the collector, for OTLP over HTTP; by default that of
        ``OTEL_EXPORTER_OTLP_ENDPOINT``, or ``http://localhost:4318``.
    :param sample_ratio: share of the episodes whose traces are sent; by default that of
        ``OTEL_TRACES_SAMPLER_ARG``, or all.
    :param content: also send the messages of calls, which may hold secrets and personal data.
    """

    enabled: bool = False
    endpoint: Annotated[str, Field(pattern=r"^https?://\S+$")] | None = None
    sample_ratio: Annotated[float, Field(ge=0, le=1)] | None = None
    content: bool = False


class StoreSettings(_Section):
    """The sample store: a component by its registered name, with its settings.

    :param name: name of the store, such as ``sqlite`` or ``postgres``.
    :param settings: settings of this store.
    :param retry_seconds: how long the server repeats an operation while the store is unavailable.
        After that a request fails with an answer that clients repeat, and a run that is training
        is paused.
    """

    name: Annotated[str, Field(min_length=1)] = "sqlite"
    settings: dict[str, Any] = Field(default_factory=dict)
    retry_seconds: Seconds = 30.0


class WorkerSettings(_Section):
    """Worker processes.

    :param python: interpreter by component, as ``engine:NAME``, ``trainer:NAME``, or ``NAME`` for
        both; ``env:NAME`` is that of an environment made by ``ajet env create``. Not allowed in a
        run's configuration, because a client must not choose what the server executes.
    :param environments: the directory of such environments; by default ``.venvs`` of the working
        directory, of those above the run directory, and next to the server's virtual environment.
    :param collective_host: address of this machine at which a trainer listens for the weight
        channel ``collective``. Model servers on other machines must be able to reach it, in a
        network you trust, because weights are sent unencrypted.
    :param preload: an engine and a trainer, such as ``{engine = "torch", trainer = "torch"}``. A
        worker imports them while the server starts, so that the first run with them boots sooner.
        Only a run that has both in one worker can use it, so none with the mode ``async``.
    """

    python: dict[str, str] = Field(default_factory=dict)
    environments: Path | None = None
    collective_host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    preload: dict[Literal["engine", "trainer"], str] = Field(default_factory=dict)


class WeightSettings(_Section):
    """Places of the weight channel ``delta`` (docs/weights.md).

    Not allowed in a run's configuration, because a client must not choose where the server writes.

    :param url: where the trainer writes the weights: a directory, or a URL that ``fsspec``
        supports, such as ``s3://bucket/weights``. By default ``weights-chain`` in the run
        directory. No other run may use it.
    :param read_url: where engines read them, if that is another URL, such as that of a web server
        which serves the directory.
    :param cache: a local directory, best in memory, in which engines keep the last two versions; by
        default ``weights-cache`` in the run directory.
    """

    url: Annotated[str, Field(min_length=1)] | None = None
    read_url: Annotated[str, Field(min_length=1)] | None = None
    cache: Path | None = None


class ModelServerSettings(_Section):
    """The model servers behind one engine, such as ``vllm``.

    Not allowed in a run's configuration, because a client must not choose what the server executes
    or connects to. The control token can add URLs while a run is active (``ajet engine add``).

    :param python: interpreter to start them with; by default the worker's interpreter if it has the
        engine, or an environment named after the engine.
    :param arguments: added to their command line; arguments that agentjet sets are refused.
    :param urls: servers that are already running, one per replica; if set, none are started.
    :param api_key: key for the servers in `urls`.
    """

    python: Annotated[str, Field(min_length=1)] | None = None
    arguments: list[str] = Field(default_factory=list)
    urls: list[Annotated[str, Field(pattern=r"^https?://")]] = Field(default_factory=list)
    api_key: SecretStr | None = None


class TokenPrice(_Section):
    """What a paid model costs.

    :param input: USD per million tokens of prompts.
    :param output: USD per million tokens of answers.
    """

    input: Price
    output: Price


class CostSettings(_Section):
    """Prices, by which the server computes what a run costs (docs/spending.md).

    :param devices: number of devices that the run holds by kind, such as ``{h100 = 8}``. By default
        the GPUs that the server sees, by their names, or one ``machine``. Set it if model servers
        run on other machines, or if the server has more GPUs than the run uses.
    :param device_hour: USD per hour of a device, by kind.
    :param models: prices of paid models, by the name that clients report.
    """

    devices: dict[Annotated[str, Field(min_length=1)], Annotated[int, Field(ge=1)]] = Field(
        default_factory=dict
    )
    device_hour: dict[str, Price] = Field(default_factory=dict)
    models: dict[str, TokenPrice] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _prices_are_of_devices(self) -> Self:
        if self.devices and (unknown := sorted(set(self.device_hour) - set(self.devices))):
            raise ValueError(
                f"device_hour has a price for {unknown[0]!r}, but devices lists only "
                f"{', '.join(map(repr, sorted(self.devices)))}"
            )
        return self


class AlertSettings(_Section):
    """Whom the server alerts to findings (docs/alerts.md).

    :param command: a program and its arguments; it gets the alert as JSON on its standard input.
    :param url: the alert is sent there as JSON (``POST``).
    :param findings: codes of the findings that are sent; ``*`` and ``?`` match any text.
    :param only_stuck: send only findings without whose solution the run does not continue.
    :param quiet_seconds: a finding counts as new, and is sent again, after it was absent this long.
    :param timeout_seconds: maximum duration of an attempt.
    :param attempts: maximum number of attempts; the pauses between them grow from 2 s to 5 minutes.
    :param environment: variables that the command gets in addition to ``PATH``, ``HOME``, ``LANG``
        and ``TMPDIR``.
    :param insecure: allow a URL without TLS on another machine.
    """

    command: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    url: SecretStr | None = None
    findings: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=lambda: ["*"])
    only_stuck: bool = False
    quiet_seconds: Annotated[float, Field(ge=0)] = 3600.0
    timeout_seconds: Annotated[float, Field(gt=0, le=300)] = 10.0
    attempts: Annotated[int, Field(ge=1, le=10)] = 5
    environment: list[str] = Field(default_factory=list)
    insecure: bool = False

    @model_validator(mode="after")
    def _has_one_target(self) -> Self:
        if bool(self.command) == (self.url is not None):
            raise ValueError("an alert has either a command or a url")
        if self.url is not None:
            # The URL may contain a secret: no message repeats it.
            parts = urlsplit(self.url.get_secret_value())
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError("url must be an http or https URL")
            if parts.scheme == "http" and not (self.insecure or _is_loopback(parts.hostname)):
                raise ValueError(
                    "the alert would be sent to another machine in the clear: use https, or, in a "
                    "network you trust, set insecure = true"
                )
        return self


class PluginSettings(_Section):
    """Plugins.

    :param blocked: names of plugins that are never imported; ``name@distribution`` selects one of
        several distributions.
    """

    blocked: list[str] = Field(default_factory=list)


class ClientSettings(_Section):
    """Defaults of the commands that talk to a server.

    :param url: URL of the server.
    :param token: not needed for a server of the same user on the same machine.
    """

    url: str = "http://127.0.0.1:8642"
    token: SecretStr | None = None


@dataclass(frozen=True, slots=True)
class SettingOrigin:
    """One effective setting.

    :param key: dotted path.
    :param value: plain data; secrets are masked.
    :param source: ``flag``, the name of an environment variable, the path of a file, or
        ``default``.
    """

    key: str
    value: Any
    source: str


class Settings(BaseSettings):
    """All settings. Keyword arguments are flags: nested mappings that override everything else.

    :param config: the TOML file; by default ``ajet.toml`` in the working directory, if it exists.
    :param alerts: whom the server alerts to findings, each as in ``[[alerts]]``.
    :param servers: model servers by the name of the engine that uses them, as in
        ``[servers.vllm]``.
    :param loggers: metrics loggers by name, with their settings, as in ``[loggers.wandb]``;
        ``jsonl`` is always enabled.
    :param agents: settings of agent adapters by name, as in ``[agents.langchain]``.
    :param worlds: settings of worlds by name.
    :param readers: settings of dataset readers by name.
    :param judges: settings of judges by name.
    :param sandboxes: settings of sandboxes by name.
    :param sources: settings of task sources by name.
    :raises ConfigError: there is an unknown key, an invalid value, or an unreadable file.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
    )

    config: Path | None = None
    server: ServerSettings = Field(default_factory=ServerSettings)
    gateway: GatewaySettings = Field(default_factory=GatewaySettings)
    store: StoreSettings = Field(default_factory=StoreSettings)
    telemetry: TelemetrySettings = Field(default_factory=TelemetrySettings)
    workers: WorkerSettings = Field(default_factory=WorkerSettings)
    weights: WeightSettings = Field(default_factory=WeightSettings)
    costs: CostSettings = Field(default_factory=CostSettings)
    alerts: list[AlertSettings] = Field(default_factory=list)
    servers: dict[str, ModelServerSettings] = Field(default_factory=dict)
    loggers: dict[str, dict[str, Any]] = Field(default_factory=dict)
    agents: dict[str, dict[str, Any]] = Field(default_factory=dict)
    worlds: dict[str, dict[str, Any]] = Field(default_factory=dict)
    readers: dict[str, dict[str, Any]] = Field(default_factory=dict)
    judges: dict[str, dict[str, Any]] = Field(default_factory=dict)
    sandboxes: dict[str, dict[str, Any]] = Field(default_factory=dict)
    sources: dict[str, dict[str, Any]] = Field(default_factory=dict)
    plugins: PluginSettings = Field(default_factory=PluginSettings)
    client: ClientSettings = Field(default_factory=ClientSettings)

    _layers: Layers = PrivateAttr()

    def __init__(self, **flags: Any) -> None:
        layers = Layers.read(type(self), flags)
        try:
            super().__init__(**layers.merged())
        except ValidationError as error:
            raise config_error(error, type(self), layers) from error
        self._layers = layers

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Use only what `Layers` has merged, because it records the source of each value."""
        return (init_settings,)

    def explain(self) -> list[SettingOrigin]:
        """Return every effective setting and its source, in the order of the classes above."""
        origins = []
        for path, value in leaves(self.model_dump(mode="json")):
            shown = MASK if value is not None and SECRET_KEY.search(path[-1]) else value
            origins.append(SettingOrigin(".".join(path), shown, self._layers.source(path)))
        return origins


def host_and_port(address: str) -> tuple[str, int]:
    """Return the host and the port of ``HOST:PORT``; an IPv6 address is in brackets."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _is_loopback(host: str) -> bool:
    if host in LOOPBACK_HOSTS:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
