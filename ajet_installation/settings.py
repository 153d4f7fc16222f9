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

SECRET_KEY = re.compile(r"password|secret|token|credential|dsn|api_?key", re.IGNORECASE)
MASK = "**********"
"""What is shown of a secret."""

Seconds = Annotated[float, Field(gt=0)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class PeerSettings(_Section):
    """Another swarm server, which this one asks how joint episodes ended.

    :param token: any token of it, of the scope ``view`` best; not needed for a server of the same user on the same
        machine.
    :param insecure: allow a host that is not loopback without TLS.
    """

    url: str
    token: SecretStr | None = None
    insecure: bool = False

    @model_validator(mode="after")
    def _is_protected(self) -> Self:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise ValueError(f"not the URL of a server: {self.url!r}")
        if parts.scheme == "http" and not (self.insecure or _is_loopback(parts.hostname)):
            raise ValueError(
                f"{self.url!r} would get its token in the clear: use https, or, in a network you trust, set "
                "insecure = true"
            )
        return self


class ServerSettings(_Section):
    """The swarm server.

    :param port: 0 takes any free port.
    :param run_dir: everything a run writes; relative to the working directory.
    :param model_roots: directories a run's model may be in, besides `run_dir`.
    :param public_url: what episodes get as base URL, if the server is behind a proxy.
    :param insecure: allow a host that is not loopback without TLS.
    :param control_token: made at random if not set, and so is `client_token`.
    :param max_body_bytes: larger requests are refused with 413.
    :param max_open_episodes: claims beyond are refused with 429, and so are waiting claims beyond
        `max_waiting_claims`.
    :param max_calls_at_once: model calls of one episode being answered; more are refused with 429, and so are
        those beyond `max_calls_per_episode`.
    :param max_episode_seconds: longest time an episode may be open, since its claim; then it is aborted, with the cause
        ``timeout``.
    :param max_reward: largest absolute value of a reward, of one of its components, and of rewards for calls and
        agents; an end with a larger one is refused with 400.
    :param max_event_streams: readers of events at once.
    :param max_connections: open connections, of anybody.
    :param max_bytes_in_flight: bytes of request bodies being read or answered, of all requests together.
    :param request_seconds: longest time a client may take to send the head of a request; to send a body, with a
        second more for every 16 KiB of it; to read the next 64 KiB of an answer.
    :param call_deadline_seconds: longest time a model call may take, waiting for weights included.
    :param stream_heartbeat_seconds: longest time a stream of a model call sends nothing; then it sends a heartbeat,
        because programs hang up on streams that are silent. 0 sends none.
    :param boot_timeout_seconds: longest time a worker may take to load its model.
    :param step_timeout_seconds: longest time a training step, a checkpoint or an export may take before its worker
        is replaced.
    :param engine_stall_seconds: longest time an engine may do nothing while calls wait for it.
    :param stuck_seconds: time without progress after which the cause is logged and told in the events.
    :param orphan_seconds: how long workers wait to be found by a server that is started again after it was killed,
        so that it need not load libraries and model anew; 0 ends them at once.
    :param peers: the other servers of joint episodes, by the names that clients give them; what is in doubt about a
        joint episode is asked of them.
    :param worker_restarts: deaths in a row of a worker after which the run fails.
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
    orphan_seconds: Annotated[float, Field(ge=0, le=3600)] = 15.0
    worker_restarts: Annotated[int, Field(ge=0)] = 3
    peers: dict[str, PeerSettings] = Field(default_factory=dict)
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @model_validator(mode="after")
    def _is_protected(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key must be set together")
        if not (self.insecure or self.tls_cert or _is_loopback(self.host)):
            raise ValueError(
                f"host {self.host!r} can be reached from other machines, which would send tokens and data "
                "in the clear: set tls_cert and tls_key, or listen on 127.0.0.1, or, in a network you "
                "trust, set insecure = true (--insecure)"
            )
        return self


class StoreSettings(_Section):
    """The sample store, a component by its registered name, with its own settings."""

    name: Annotated[str, Field(min_length=1)] = "sqlite"
    settings: dict[str, Any] = Field(default_factory=dict)


class WorkerSettings(_Section):
    """Worker processes.

    :param python: interpreter by component, as ``engine:NAME``, ``trainer:NAME``, or ``NAME`` for both; ``env:NAME``
        is that of an environment made by ``ajet env create``. Only here, never in a run's configuration: a
        client must not choose what the server executes.
    :param environments: the directory such environments are in; ``.venvs`` of the working directory, of those above
        the run directory, and beside the virtual environment the server runs in, if it is not set.
    :param collective_host: address of this machine that a trainer listens at for the weight channel ``collective``. Model
        servers of other machines need one they can reach, in a network you trust: weights go over it in the clear.
    """

    python: dict[str, str] = Field(default_factory=dict)
    environments: Path | None = None
    collective_host: Annotated[str, Field(min_length=1)] = "127.0.0.1"


class ModelServerSettings(_Section):
    """The model servers behind one engine, such as ``vllm``.

    Only here, never in a run's configuration: a client must not choose what the server executes, nor whom it talks to.

    :param python: interpreter to start them with; if not set, the worker's own interpreter if it has the engine, or an
        environment named after the engine.
    :param arguments: added to their command line; what agentjet itself decides is refused.
    :param urls: servers that run already, one a replica; none are started then.
    :param api_key: what those ask for.
    """

    python: Annotated[str, Field(min_length=1)] | None = None
    arguments: list[str] = Field(default_factory=list)
    urls: list[Annotated[str, Field(pattern=r"^https?://")]] = Field(default_factory=list)
    api_key: SecretStr | None = None


class PluginSettings(_Section):
    """Plugins.

    :param blocked: names of plugins that are never imported; ``name@distribution`` picks one of
        several distributions.
    """

    blocked: list[str] = Field(default_factory=list)


class ClientSettings(_Section):
    """Defaults of clients.

    :param token: not needed for a server of the same user on the same machine.
    """

    url: str = "http://127.0.0.1:8642"
    token: SecretStr | None = None


@dataclass(frozen=True, slots=True)
class SettingOrigin:
    """One effective setting.

    :param key: dotted path.
    :param value: plain data; secrets are masked.
    :param source: ``flag``, the name of an environment variable, the path of a file, or ``default``.
    """

    key: str
    value: Any
    source: str


class Settings(BaseSettings):
    """All settings. Keyword arguments are flags: nested mappings that override everything else.

    :param config: the TOML file; ``ajet.toml`` of the working directory if there is one.
    :param servers: model servers by name of the engine that uses them, as in ``[servers.vllm]``.
    :param loggers: metrics loggers by name, with their settings, as in ``[loggers.wandb]``; ``jsonl`` is always on.
    :param agents: settings of agent adapters by name, as in ``[agents.langchain]``.
    :raises ConfigError: an unknown key, a wrong value, or a file that cannot be read.
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
    store: StoreSettings = Field(default_factory=StoreSettings)
    workers: WorkerSettings = Field(default_factory=WorkerSettings)
    servers: dict[str, ModelServerSettings] = Field(default_factory=dict)
    loggers: dict[str, dict[str, Any]] = Field(default_factory=dict)
    agents: dict[str, dict[str, Any]] = Field(default_factory=dict)
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
        """What `Layers` has merged, and nothing more: it alone knows where each value came from."""
        return (init_settings,)

    def explain(self) -> list[SettingOrigin]:
        """Every effective setting and where it came from, in the order of the classes above."""
        origins = []
        for path, value in leaves(self.model_dump(mode="json")):
            shown = MASK if value is not None and SECRET_KEY.search(path[-1]) else value
            origins.append(SettingOrigin(".".join(path), shown, self._layers.source(path)))
        return origins


def _is_loopback(host: str) -> bool:
    if host in LOOPBACK_HOSTS:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
