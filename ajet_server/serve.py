"""``ajet serve``: run a server until a signal stops it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import gc
import json
import logging
import os
import resource
import signal
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Generator
from typing import Any, TypeVar

import uvicorn
from starlette.middleware import Middleware
from starlette.routing import Route
from starlette.types import ASGIApp

from ajet_core.credentials import ServerTokens
from ajet_core.errors import ConfigError
from ajet_core.files import write_whole
from ajet_core.plugin import PluginManager
from ajet_installation.event_loop import loop_factory
from ajet_installation.interpreters import plugin_manager
from ajet_installation.settings import ServerSettings, Settings
from ajet_server.build import build_service, telemetry_of
from ajet_server.http.app import create_app, create_calls_app
from ajet_server.http.connection import ConnectionLimits, guarded_protocol
from ajet_server.observe.provenance import note_provenance
from ajet_server.page.visible_text import visible
from ajet_server.processes.desk import GatewayDesk
from ajet_server.processes.forwarding import Forwarding
from ajet_server.processes.gateway import GatewayProcess
from ajet_server.processes.machines import MachineListener, OtherMachine, SameMachine, reach_of
from ajet_server.processes.mailbox import Mailboxes, TakeLink
from ajet_server.processes.passing import PassingProtocol
from ajet_server.processes.places import SERVER
from ajet_server.processes.supervisor import ProcessPlace, supervise
from ajet_server.security.guard import TokenGuard, make_tokens, publish_local, withdraw_local
from ajet_server.service import SwarmService

T = TypeVar("T")

_log = logging.getLogger("ajet.server")
_BACKLOG = 2048
_OTHER_FILES = 256
_CLOSE_SECONDS = 10
# The longest time for a gateway process to finish its calls before it ends. Calls that arrive for
# its episodes wait meanwhile.
_DRAIN_SECONDS = 60
# The longest time for passing connections on before a process ends.
_SENT_SECONDS = 2.0
# Processes of a killed server hold its port a moment longer.
_ORPHAN_SECONDS = 2.0
_KEEP_ALIVE_SECONDS = 75
# The fast path "collector": calls and steps create no reference cycles, but with Python's default
# thresholds the collector runs several times per call. A full collection with 10,000 open episodes
# stops the server for a third of a second. The first two are low, because most objects of a call
# live until its episode is trained: with 50,000 a collection of young objects took 60 ms.
_COLLECT_AFTER = (5_000, 1, 5_000)


def serve(settings: Settings, plugins: PluginManager | None = None) -> None:
    """Run a server until SIGINT or SIGTERM. An active run resumes when the server restarts.

    While the server listens, ``<run_dir>/server.json`` holds its URL and process id. If a metrics
    logger is still blocked at the end, this also ends the process.

    :param plugins: the available components; None uses the installed ones.
    :raises ConfigError: the address cannot be bound, or a setting cannot be used.
    :raises StoreError: another server uses the run directory.
    :raises PluginError: a metrics logger cannot be created.
    """
    _log_as("", settings.server.log_level)
    logging.getLogger("uvicorn.error").addFilter(_without_warnings)
    _check_files(settings.server)
    known = plugins or plugin_manager(settings)
    listener = bind(settings.server, _ORPHAN_SECONDS if settings.server.processes > 1 else 0.0)
    # A server process that is replaced keeps them.
    tokens = make_tokens(settings.server)
    try:
        if settings.server.processes == 1:
            service = build_service(settings, known)
            if _run(settings, _serve(settings, service, listener, tokens)):
                # The interpreter would wait for threads of the blocked loggers.
                logging.shutdown()
                os._exit(0)
        else:
            supervise(
                settings.server.processes,
                lambda place: _work(settings, known, listener, tokens, place),
                settings.server.logger_close_seconds,
            )
    finally:
        listener.close()


class PlainFormatter(logging.Formatter):
    """Formats records without what a terminal would obey: they quote agents and models."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as text, whose further lines are indented: none looks like a record."""
        return visible(super().format(record), keep="\n\t").replace("\n", "\n  ")


def _log_as(prefix: str, level: str) -> None:
    """Log to standard error.

    :param prefix: names the process.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(PlainFormatter(f"%(asctime)s %(levelname)s {prefix}%(name)s: %(message)s"))
    # Handlers of the parent process have its prefix.
    logging.basicConfig(force=bool(prefix), level=level.upper(), handlers=[handler])
    # It would log the URL of every request, and those of alerts may be secrets.
    for library in ("httpx", "httpx2"):
        logging.getLogger(library).setLevel(logging.WARNING)


def _run(settings: Settings, main: Coroutine[Any, Any, T]) -> T:
    set_up_collector(settings.server.fast_paths)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)


def _work(
    settings: Settings,
    plugins: PluginManager,
    listener: socket.socket,
    tokens: ServerTokens,
    place: ProcessPlace,
) -> None:
    """Run one of the processes of a server until SIGTERM."""
    name = "server" if place.number == SERVER else f"gateway {place.number}"
    _log_as(f"[{name}] ", settings.server.log_level)
    # All of them would say that they have started.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    if place.number == SERVER:
        service = build_service(settings, plugins)
        _run(settings, _serve(settings, service, listener, tokens, place))
    else:
        _run(settings, _serve_calls(settings, listener, place))


def set_up_collector(fast_paths: Collection[str]) -> None:
    """Exclude the present objects from collection, which are permanent, and set the thresholds."""
    gc.freeze()
    if "collector" in fast_paths:
        gc.set_threshold(*_COLLECT_AFTER)


def _without_warnings(record: logging.LogRecord) -> bool:
    """Drop uvicorn's warning for each request that is not HTTP: anyone could fill the disk."""
    return record.levelno != logging.WARNING


def _check_files(server: ServerSettings) -> None:
    for name, path in (("tls_cert", server.tls_cert), ("tls_key", server.tls_key)):
        if path is not None and not os.access(path, os.R_OK):
            raise ConfigError(f"cannot read {path} (server.{name})", param=f"server.{name}")
    for root in server.model_roots:
        if not root.is_dir():
            wrong = "is not a directory" if root.exists() else "does not exist"
            raise ConfigError(
                f"the model root {root.absolute()} {wrong}: --model-root (setting "
                "server.model_roots) must be a directory that contains model directories",
                param="server.model_roots",
            )


def bind(server: ServerSettings, patience: float = 0.0) -> socket.socket:
    """Return a socket that listens on the server's address.

    :param patience: seconds to wait for a port that is in use.
    :raises ConfigError: the port is in use, or the address does not belong to this machine.
    """
    family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
    # asyncio disables Nagle's algorithm, which costs 40 ms per response, only if the protocol is
    # explicitly TCP.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    until = time.monotonic() + patience
    try:
        while True:
            try:
                listener.bind((server.host, server.port))
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() > until:
                    raise
                time.sleep(0.05)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        why = "the port is in use" if error.errno == errno.EADDRINUSE else str(error.strerror)
        raise ConfigError(
            f"cannot listen on {server.host}:{server.port}: {why} (choose another port with "
            "--port or the setting server.port; 0 picks a free port)",
            param="server.port",
        ) from error
    return listener


async def _serve(
    settings: Settings,
    service: SwarmService,
    listener: socket.socket,
    tokens: ServerTokens,
    place: ProcessPlace | None = None,
) -> list[str]:
    """Serve until a signal arrives.

    :return: the metrics loggers that are still blocked.
    """
    server = settings.server
    port = int(listener.getsockname()[1])
    app = create_app(service, TokenGuard(tokens, service.tokens))
    _allow_connections(server.max_connections)
    # Open the store before announcing anything: a run directory in use must end the command.
    await service.open()
    scheme = "https" if server.tls_cert else "http"
    host = f"[{server.host}]" if ":" in server.host else server.host
    url = f"{scheme}://{host}:{port}"
    note = server.run_dir / "server.json"
    loop = asyncio.get_running_loop()
    desk = GatewayDesk(service)
    service.missing_gateways, service.gateways = desk.missing, lambda: len(desk.gateways)
    try:
        _publish_tokens(port, tokens)
        pid = os.getpid() if place is None else os.getppid()
        write_whole(note, json.dumps({"url": url, "pid": pid}).encode())
        note_provenance(settings)
        _log.info("listening on %s, run directory %s", url, server.run_dir.resolve())

        def interrupt() -> asyncio.Task[None]:
            return loop.create_task(service.interrupt())

        if place is None:
            async with _accepting_gateways(server, desk):
                await _Server(http_config(app, server), interrupt).serve([listener])
        else:
            await _serve_place(app, server, listener, place, interrupt, desk.connect)
    finally:
        withdraw_local(port)
        note.unlink(missing_ok=True)
        # Gateway processes record pending calls with the next server process.
        await desk.close()
        await service.close()
    return service.loggers.blocked


@contextlib.asynccontextmanager
async def _accepting_gateways(server: ServerSettings, desk: GatewayDesk) -> AsyncIterator[None]:
    """Accept gateways on other machines while the context is open, if the settings say so."""
    if server.gateways_listen is None:
        yield
        return
    async with MachineListener(server, desk.serve, desk.engine).listening():
        yield


async def _serve_calls(settings: Settings, listener: socket.socket, place: ProcessPlace) -> None:
    """Answer agents' calls in a gateway process."""
    server = settings.server
    _allow_connections(server.max_connections)
    mailboxes = Mailboxes(place.mailbox, place.mailboxes)
    reach = SameMachine(lambda link: mailboxes.send_link(SERVER, link))
    telemetry = telemetry_of(settings, "gateway")
    gateway = GatewayProcess(server, reach, place.number, telemetry=telemetry)
    app = create_calls_app(gateway.model_service(), gateway.unreported)
    gateway.open()
    try:
        await _serve_place(app, server, listener, place, gateway.end, mailboxes=mailboxes)
    finally:
        await gateway.close()


def serve_gateway(settings: Settings) -> None:
    """Run a gateway of a server on another machine until SIGINT or SIGTERM.

    :raises ConfigError: a setting is missing or cannot be used.
    :raises AuthError: the server has another `server.gateway_token`.
    :raises VersionError: the server is another version of agentjet.
    """
    _log_as("", settings.server.log_level)
    logging.getLogger("uvicorn.error").addFilter(_without_warnings)
    _check_files(settings.server)
    reach = reach_of(settings)
    listener = bind(settings.server)
    try:
        _run(settings, _serve_gateway(settings, reach, listener))
    finally:
        listener.close()


async def _serve_gateway(settings: Settings, reach: OtherMachine, listener: socket.socket) -> None:
    server, url = settings.server, settings.gateway.url
    assert url is not None
    _allow_connections(server.max_connections)
    # The server may start later; if it refuses this gateway, that is an error.
    with contextlib.suppress(OSError):
        _, writer = await reach.server()
        writer.close()
    telemetry = telemetry_of(settings, "gateway")
    gateway = GatewayProcess(server, reach, url=url, telemetry=telemetry)
    app = create_calls_app(
        gateway.model_service(),
        gateway.unreported,
        Middleware(Forwarding, forget=gateway.episodes.forget_place),
        routes=[Route("/v1/protocol", gateway.protocol)],
    )
    config = http_config(app, server)
    config.timeout_graceful_shutdown = _DRAIN_SECONDS
    gateway.open()
    try:
        host, port = listener.getsockname()[:2]
        _log.info("gateway %s listens on %s:%d", url, host, port)
        await _Server(config, gateway.end).serve([listener])
    finally:
        await gateway.close()


async def _serve_place(  # noqa: PLR0917
    app: ASGIApp,
    server: ServerSettings,
    listener: socket.socket,
    place: ProcessPlace,
    interrupt: Callable[[], object],
    take_link: TakeLink = socket.socket.close,
    mailboxes: Mailboxes | None = None,
) -> None:
    """Serve the requests for one of several processes, also over connections of the others."""
    mailboxes = mailboxes or Mailboxes(place.mailbox, place.mailboxes)
    limits = ConnectionLimits(server.max_connections, server.request_seconds)
    protocol = type(
        "PlacedProtocol",
        (PassingProtocol,),
        {
            "limits": limits,
            "place": place.number,
            "gateways": place.gateways,
            "mailboxes": mailboxes,
        },
    )
    config = http_config(app, server, protocol)
    if place.number != SERVER:
        config.timeout_graceful_shutdown = _DRAIN_SECONDS
    loop = asyncio.get_running_loop()
    taking: set[asyncio.Task[object]] = set()

    def take(connection: socket.socket, received: bytes) -> None:
        state = serving.lifespan.state
        make = functools.partial(protocol, config, serving.server_state, state, received=received)
        task = loop.create_task(loop.connect_accepted_socket(make, connection))
        taking.add(task)
        task.add_done_callback(taking.discard)

    def orphaned() -> None:
        # Exit at once: the next server needs the port.
        os._exit(1)

    serving = _Server(config, interrupt, mailboxes, lambda boxes: boxes.receive(take, take_link))
    loop.add_reader(place.parent_alive, orphaned)
    try:
        await serving.serve([listener])
    finally:
        loop.remove_reader(place.parent_alive)


def http_config(
    app: ASGIApp, server: ServerSettings, protocol: type[asyncio.Protocol] | None = None
) -> uvicorn.Config:
    """Return the uvicorn configuration that serves `app`.

    :param protocol: handles connections; None applies the server's limits to them.
    :raises ConfigError: the certificate or its key cannot be used.
    """
    config = uvicorn.Config(
        app,
        http=protocol
        or guarded_protocol(ConnectionLimits(server.max_connections, server.request_seconds)),
        ws="none",
        lifespan="off",
        # Trust forwarding headers only if the settings place a TLS-terminating proxy in front.
        proxy_headers=server.public_url is not None and server.tls_cert is None,
        log_config=None,
        access_log=False,
        server_header=False,
        ssl_certfile=str(server.tls_cert) if server.tls_cert else None,
        ssl_keyfile=str(server.tls_key) if server.tls_key else None,
        # Longer than clients keep idle connections, so the server never closes one in use.
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_CLOSE_SECONDS,
        backlog=_BACKLOG,
    )
    if server.tls_cert is not None:
        _load_tls(config, server)
    return config


def _allow_connections(count: int) -> None:
    """Raise the soft limit on open files: the usual 1024 is enough for a few hundred agents."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        best = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (best, hard))
        if best < wanted:
            _log.warning(
                "this process may open only %d files, too few for %d connections: raise the "
                "limit (ulimit -n), or lower server.max_connections",
                best,
                count,
            )


def _load_tls(config: uvicorn.Config, server: ServerSettings) -> None:
    try:
        config.load()
    except OSError as error:  # includes ssl.SSLError
        raise ConfigError(
            f"cannot use the certificate {server.tls_cert} with the key {server.tls_key}: "
            f"{error}; both must be PEM files that belong together",
            param="server.tls_cert",
        ) from error
    assert config.ssl is not None
    config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2


class _Server(uvicorn.Server):
    """A uvicorn server that calls `interrupt` on a signal, so that open connections end.

    uvicorn waits for open connections before it exits. It would also raise the signals again
    afterwards, which would kill the process before the store and the workers are closed. Here
    signals only end `serve`.

    :param mailboxes: of one of several processes. It receives from them while it serves, and only
        SIGTERM ends it: the process that forked it handles the others.
    :param receive: begins to receive.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        interrupt: Callable[[], object],
        mailboxes: Mailboxes | None = None,
        receive: Callable[[Mailboxes], object] = lambda _: None,
    ) -> None:
        super().__init__(config)
        self._interrupt = interrupt
        self._mailboxes = mailboxes
        self._receive = receive

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Extend the base class: connections of other processes arrive from now on."""
        await super().startup(sockets)
        if self._mailboxes is not None:
            self._receive(self._mailboxes)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Extend the base class: connections of other processes wait for the next one."""
        if self._mailboxes is not None:
            self._mailboxes.close()
        await super().shutdown(sockets)
        if self._mailboxes is not None:
            await self._mailboxes.sent(_SENT_SECONDS)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        loop = asyncio.get_running_loop()
        ends = [signal.SIGTERM] if self._mailboxes else [signal.SIGINT, signal.SIGTERM]
        for number in ends:
            loop.add_signal_handler(number, self.end)
        try:
            yield
        finally:
            for number in ends:
                loop.remove_signal_handler(number)

    def end(self) -> None:
        """End `serve`."""
        if not self.should_exit:
            self.should_exit = True
            self._interrupt()


def _publish_tokens(port: int, tokens: ServerTokens) -> None:
    try:
        publish_local(port, tokens)
    except OSError as error:
        # Clients that are given their token do not need the file, so keep serving without it.
        _log.warning("local clients cannot find the tokens automatically: %s", error)
