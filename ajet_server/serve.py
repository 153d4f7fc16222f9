"""``ajet serve``: run a server process until a signal stops it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import json
import logging
import os
import resource
import signal
import socket
import ssl
from collections.abc import Callable, Collection, Generator

import uvicorn
from starlette.types import ASGIApp

from ajet_core import credentials
from ajet_core.credentials import ServerTokens
from ajet_core.errors import ConfigError
from ajet_core.files import write_whole
from ajet_core.plugin import PluginManager
from ajet_installation.event_loop import loop_factory
from ajet_installation.interpreters import plugin_manager
from ajet_installation.settings import ServerSettings, Settings
from ajet_server.build import build_service
from ajet_server.http.app import create_app
from ajet_server.http.connection import ConnectionLimits, guarded_protocol
from ajet_server.security.guard import TokenGuard, make_tokens
from ajet_server.service import SwarmService

_log = logging.getLogger("ajet.server")
_BACKLOG = 2048
_OTHER_FILES = 256
_CLOSE_SECONDS = 10
_KEEP_ALIVE_SECONDS = 75
# The fast path "collector": calls and steps create no reference cycles, but with Python's default
# thresholds the collector runs several times per call. A full collection with 10,000 open episodes
# stops the server for a third of a second.
_COLLECT_AFTER = (50_000, 5, 200)


def serve(settings: Settings, plugins: PluginManager | None = None) -> None:
    """Run a server until SIGINT or SIGTERM. An active run resumes when the server restarts.

    While the server listens, ``<run_dir>/server.json`` holds its URL and process id.

    :param plugins: the available components; None uses the installed ones.
    :raises ConfigError: the address cannot be bound, or a setting cannot be used.
    :raises StoreError: another server uses the run directory.
    """
    logging.basicConfig(
        level=settings.server.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    logging.getLogger("uvicorn.error").addFilter(_without_warnings)
    _check_files(settings.server)
    if plugins is None:
        plugins = plugin_manager(settings)
    service = build_service(settings, plugins)
    listener = bind(settings.server)
    try:
        set_up_collector(settings.server.fast_paths)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_serve(settings, service, listener))
    finally:
        listener.close()


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


def bind(server: ServerSettings) -> socket.socket:
    """Return a socket that listens on the server's address.

    :raises ConfigError: the port is in use, or the address does not belong to this machine.
    """
    family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
    # asyncio disables Nagle's algorithm, which costs 40 ms per response, only if the protocol is
    # explicitly TCP.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((server.host, server.port))
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


async def _serve(settings: Settings, service: SwarmService, listener: socket.socket) -> None:
    server = settings.server
    port = int(listener.getsockname()[1])
    tokens = make_tokens(server)
    app = create_app(service, TokenGuard(tokens, service.tokens))
    config = http_config(app, server)
    _allow_connections(server.max_connections)
    # Open the store before announcing anything: a run directory in use must end the command.
    await service.open()
    scheme = "https" if server.tls_cert else "http"
    host = f"[{server.host}]" if ":" in server.host else server.host
    url = f"{scheme}://{host}:{port}"
    note = server.run_dir / "server.json"
    try:
        _publish_tokens(port, tokens)
        write_whole(note, json.dumps({"url": url, "pid": os.getpid()}).encode())
        _log.info("listening on %s, run directory %s", url, server.run_dir.resolve())
        loop = asyncio.get_running_loop()
        await _Server(config, lambda: loop.create_task(service.interrupt())).serve([listener])
    finally:
        credentials.withdraw_local(port)
        note.unlink(missing_ok=True)
        await service.close()


def http_config(app: ASGIApp, server: ServerSettings) -> uvicorn.Config:
    """Return the uvicorn configuration that serves `app`.

    :raises ConfigError: the certificate or its key cannot be used.
    """
    config = uvicorn.Config(
        app,
        http=guarded_protocol(ConnectionLimits(server.max_connections, server.request_seconds)),
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
    """

    def __init__(self, config: uvicorn.Config, interrupt: Callable[[], object]) -> None:
        super().__init__(config)
        self._interrupt = interrupt

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        loop = asyncio.get_running_loop()
        ends = (signal.SIGINT, signal.SIGTERM)
        for number in ends:
            loop.add_signal_handler(number, self._on_signal)
        try:
            yield
        finally:
            for number in ends:
                loop.remove_signal_handler(number)

    def _on_signal(self) -> None:
        if not self.should_exit:
            self.should_exit = True
            self._interrupt()


def _publish_tokens(port: int, tokens: ServerTokens) -> None:
    try:
        credentials.publish_local(port, tokens)
    except OSError as error:
        # Clients that are given their token do not need the file, so keep serving without it.
        _log.warning("local clients cannot find the tokens automatically: %s", error)
