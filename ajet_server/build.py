"""Build a server from its settings."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from ajet_core.errors import ConfigError, UnknownComponentError
from ajet_core.interfaces import WorkerContext
from ajet_core.plugin import LoggerSpec, PluginManager
from ajet_core.plugin.targets import CORE_DISTRIBUTION, extras_with, install_hint
from ajet_installation.interpreters import is_installed_here
from ajet_installation.settings import Settings
from ajet_server.admission.admission import Admission
from ajet_server.alerts.alerting import Alerts
from ajet_server.alerts.redacting import Redactor
from ajet_server.episodes.claims import ClaimDesk
from ajet_server.episodes.evaluations import Evaluations
from ajet_server.episodes.joint import JointDesk
from ajet_server.episodes.joint_peers import JointPeers
from ajet_server.episodes.open_episodes import OpenEpisodes
from ajet_server.episodes.registry import EpisodeRegistry
from ajet_server.observe.events import EventLog
from ajet_server.observe.logger_thread import LoggerThread
from ajet_server.observe.loop_watch import LoopWatch
from ajet_server.observe.metrics_loggers import MetricsLoggers
from ajet_server.observe.system_metrics import SystemMonitor
from ajet_server.run.coordinator import Coordinator
from ajet_server.run.run_parts import RunParts
from ajet_server.security.credentials import TokenBook
from ajet_server.security.tenants import TenantLimits, Tenants
from ajet_server.service import SwarmService
from ajet_server.spending.meter import SpendingMeter
from ajet_server.state import StateBoard
from ajet_server.store.chosen_store import run_store
from ajet_server.workers.spare_worker import SpareWorker

if TYPE_CHECKING:
    from ajet_server.telemetry.telemetry import Telemetry


def build_service(settings: Settings, plugins: PluginManager) -> SwarmService:
    """Build the service and all its components.

    :raises ConfigError: a store or logger is unknown, or the run directory cannot be created.
    """
    run_dir = settings.server.run_dir.resolve()
    try:
        # The directory holds everything that agents send, so only its owner may read it.
        run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot create the run directory {run_dir}: {error}", param="server.run_dir"
        ) from error
    context = WorkerContext(run_dir=run_dir)
    store = run_store(settings.store, plugins, run_dir)
    loggers = _loggers(settings, plugins, context)
    watch = LoopWatch(plugins, time.monotonic)
    telemetry = telemetry_of(settings, "server")
    listeners = [lambda episode: watch.notify("ajet_episode_finished", episode=episode)]
    if telemetry is not None:
        listeners.append(telemetry.episode_finished)
    events = EventLog(time.time)
    board = StateBoard(events, time.monotonic)
    board.listen(lambda state: watch.notify("ajet_state_changed", state=state))
    server = settings.server
    tokens = TokenBook(run_dir)
    tenants = Tenants(
        tokens,
        TenantLimits(
            server.max_open_episodes,
            server.max_waiting_claims,
            server.max_calls_at_once,
            server.max_calls_per_episode,
            server.max_event_streams,
        ),
    )
    open_episodes = OpenEpisodes(time.monotonic, time.time, server.max_episode_seconds)
    admission = Admission(
        board,
        events,
        tenants,
        clock=time.monotonic,
        idle_seconds=open_episodes.still,
        wall_clock=time.time,
    )
    evaluations = Evaluations()
    episodes = EpisodeRegistry(
        store,
        board,
        events,
        tenants,
        open_episodes=open_episodes,
        admission=admission,
        evaluations=evaluations,
        answers_calls=not server.divided,
        clock=time.monotonic,
        wall_clock=time.time,
        listeners=listeners,
    )
    joint = JointDesk(store, episodes, wall_clock=time.time)
    spending = SpendingMeter(
        run_dir,
        settings.costs,
        phase=lambda: coordinator.phase(),  # noqa: PLW0108 - it is made below
        clock=time.monotonic,
        wall_clock=time.time,
    )
    board.listen(lambda _: spending.mark())
    open_episodes.listen(spending.mark)
    parts = RunParts(
        settings=settings.server,
        store=store,
        plugins=plugins,
        board=board,
        events=events,
        episodes=episodes,
        admission=admission,
        evaluations=evaluations,
        loggers=loggers,
        watch=watch,
        spending=spending,
        spare=SpareWorker.of(settings, plugins),
        clock=time.monotonic,
        wall_clock=time.time,
        telemetry=telemetry,
    )
    coordinator = Coordinator(settings, parts)
    return SwarmService(
        settings=settings,
        plugins=plugins,
        store=store,
        loggers=loggers,
        system=SystemMonitor(run_dir, loggers.log_system, server.system_metrics_seconds, time.time),
        watch=watch,
        events=events,
        board=board,
        episodes=episodes,
        admission=admission,
        claims=ClaimDesk(store, episodes, admission),
        parts=parts,
        coordinator=coordinator,
        evaluations=evaluations,
        tokens=tokens,
        tenants=tenants,
        telemetry=telemetry,
        joint=joint,
        peers=JointPeers(joint, episodes.prepared, server.peers),
        alerts=Alerts(settings.alerts, run_dir, Redactor(settings), clock=time.monotonic),
    )


def telemetry_of(settings: Settings, process: str) -> Telemetry | None:
    """Return what exports the telemetry of a process, None if that is off.

    :param process: ``server`` or ``gateway``.
    :raises ConfigError: the extra ``otel`` is not installed, or a variable of the environment has a
        value that cannot be used.
    """
    if not settings.telemetry.enabled:
        return None
    try:
        from ajet_server.telemetry.telemetry import Telemetry
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"telemetry.enabled is on, but {error.name} is not installed: "
            "pip install 'agentjet[otel]>=0.1'",
            param="telemetry.enabled",
        ) from error
    return Telemetry.of(settings.telemetry, process)


def _logger(name: str, plugins: PluginManager) -> LoggerSpec:
    try:
        return plugins.logger(name)
    except UnknownComponentError as error:
        distribution = f"{CORE_DISTRIBUTION}-loggers-{name}"
        if is_installed_here(distribution) or not extras_with(distribution):
            raise
        raise UnknownComponentError(
            f"the logger {name!r} (setting loggers.{name}) is not installed: "
            f"{install_hint(distribution)}"
        ) from error


def _loggers(settings: Settings, plugins: PluginManager, context: WorkerContext) -> MetricsLoggers:
    server = settings.server
    threads = []
    for name, values in {"jsonl": {}, **settings.loggers}.items():
        spec = _logger(name, plugins)
        checked = plugins.validate_settings(spec, values)
        make = partial(plugins.create, spec, checked, context)
        thread = LoggerThread(
            plugins.describe(spec), make, limit=server.logger_queue, clock=time.monotonic
        )
        threads.append(thread)
    return MetricsLoggers(
        threads,
        position_file=context.run_dir / "logged.json",
        call_seconds=server.logger_seconds,
        close_seconds=server.logger_close_seconds,
    )
