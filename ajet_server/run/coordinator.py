"""The run of a server: configure, start, pause and stop it, and restore it after a crash."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ajet_core.errors import AjetError, StateError, StoreError, error_from_payload
from ajet_core.interfaces import EndReason, RunRecord
from ajet_core.protocol import (
    AgentRule,
    BudgetConfig,
    CallSampling,
    EngineServers,
    ErrorDetail,
    MixtureConfig,
    MixtureStatus,
    ResumeRequest,
    RolloutStatus,
    RunConfig,
    RunStatus,
    ServerState,
    Spending,
    StepSummary,
)
from ajet_installation.settings import Settings
from ajet_server.gateway.formats.completing import CompletionService
from ajet_server.run.base_model import check_base_model, note_base_model
from ajet_server.run.engine_servers import checked_url, without, write_servers
from ajet_server.run.run_loop import GoBack, RunLoop
from ajet_server.run.run_parts import RunParts
from ajet_server.run.run_setup import ResolvedRun, check_same_run, resolve_run, stored_config
from ajet_server.run.run_workers import RunWorkers
from ajet_server.spending.meter import IDLE, ROLLOUT
from ajet_server.spending.totals import PAUSED
from ajet_server.store.checkpoints import CheckpointFolder
from ajet_server.store.evaluation_counts import EvaluationCount

_log = logging.getLogger("ajet.server")

NO_RUN = (
    "no run is configured: start one with `ajet train SOURCE --run FILE`, call `sync_train_config` "
    "in Python, or PUT /v1/run first"
)

# In the other states, the phase depends on whether a step is trained and episodes are open.
_PHASES = {
    ServerState.BOOTING: "boot",
    ServerState.ROLLING_POST: "train",
    ServerState.WEIGHT_SYNCING: "sync",
}


class Coordinator:
    """Manages the run of a server. At most one run is active at a time.

    :ivar error: the error that ended the last run, if it failed.
    """

    def __init__(self, settings: Settings, parts: RunParts) -> None:
        self._settings = settings
        self._parts = parts
        self._store, self._board, self._events = parts.store, parts.board, parts.events
        self._record: RunRecord | None = None
        self._run: ResolvedRun | None = None
        self._loop: RunLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._configuring = asyncio.Lock()
        self._export_dir: Path | None = None
        self._step = 0
        self.error: ErrorDetail | None = None

    @property
    def run_id(self) -> str | None:
        """The id of the configured run."""
        return self._record.run_id if self._record else None

    @property
    def model_name(self) -> str | None:
        """The name of the served model."""
        return self._run.config.model.name if self._run else None

    @property
    def agents(self) -> Mapping[str, str | AgentRule]:
        """What identifies the calls of agents, by agent name."""
        return self._run.config.rollout.agents if self._run else {}

    @property
    def evaluation_sampling(self) -> CallSampling:
        """How calls of evaluation episodes are sampled."""
        return self._parts.evaluations.config.sampling

    @property
    def running(self) -> bool:
        """Whether a run is active, in any state."""
        return self._task is not None and not self._task.done()

    @property
    def loop(self) -> RunLoop | None:
        """The present run, or the last one of this process."""
        return self._loop

    @property
    def workers(self) -> RunWorkers | None:
        """The running workers, if any."""
        return self._loop.supervisor.running if self._loop else None

    @property
    def chat(self) -> CompletionService | None:
        """Answers model calls while a run is active or reboots; None before the first boot."""
        return self._loop.chat if self._loop else None

    @property
    def last_step(self) -> StepSummary | None:
        """The last step trained by this process."""
        return self._loop.last_step if self._loop else None

    @property
    def last_step_at(self) -> float:
        """When the last step ended, in Unix seconds; 0 without one."""
        return self._loop.last_step_at if self._loop else 0.0

    @property
    def step(self) -> int:
        """The number of steps that the present weights have been trained."""
        return self._loop.step if self._loop else self._step

    @property
    def paused(self) -> str | None:
        """Why the run is paused, None if it is not."""
        return (self._record.paused or None) if self._record else None

    async def restore(self) -> None:
        """Restore the run of the store, if there is one.

        A run that was active when the server died resumes automatically.
        """
        self._record = await self._store.get_run()
        if self._record is None:
            return
        checkpoint = await asyncio.to_thread(
            CheckpointFolder(self._parts.run_dir).latest, self._record.run_id
        )
        self._step = self._board.policy_version = checkpoint.step if checkpoint else 0
        config = stored_config(self._record)
        counts = await self._evaluation_counts(config)
        self._parts.evaluations.begin(config.evaluation, counts)
        if self._record.active:
            try:
                self._run = await self._resolve(self._record.run_id, config)
            except AjetError as error:
                self._fail(error)
                return
            self._launch()

    async def configure(self, config: RunConfig) -> RunStatus:
        """Check `config` and make it the run of this server.

        A client that restarts sends the same configuration again. This changes nothing, even while
        the run is active.

        :raises StateError: a run with another configuration is active.
        :raises ConfigError: the configuration cannot be used; nothing has changed.
        """
        async with self._configuring:
            before = self._record
            if self.running and before is not None:
                await self._require_same(before, config)
                return self.run_status()
            run_id = before.run_id if before else secrets.token_hex(6)
            created = before.created_at if before else self._parts.wall_clock()
            run = await self._resolve(run_id, config)
            place = self._parts.run_dir, run.config.model.path
            if before is not None and await self._has_history():
                check_same_run(before, run.config)
                await asyncio.to_thread(check_base_model, *place)
            else:
                await asyncio.to_thread(note_base_model, *place)
            record = RunRecord(run_id, run.config.model_dump_json(), created)
            if before is not None:
                record = replace(record, back_to=before.back_to, retrains=before.retrains)
            counts = await self._evaluation_counts(run.config)
            await self._store.put_run(record)
            self._parts.evaluations.begin(run.config.evaluation, counts)
            self._run, self._record, self.error = run, record, None
            return self.run_status()

    async def start(self, wait_seconds: float) -> RunStatus:
        """Start the configured run unless it is active, and wait until it is ROLLING.

        :param wait_seconds: the longest time to wait.
        :raises StateError: no run is configured, or its budget is spent.
        :raises AjetError: the boot failed while waiting.
        """
        async with self._configuring:
            if not self.running:
                await self._start()
        task = self._task
        try:
            async with asyncio.timeout(wait_seconds):
                await self._board.wait_until(
                    lambda: (
                        self._board.state is not ServerState.BOOTING or task is None or task.done()
                    )
                )
        except TimeoutError:
            # Not an error: the caller sees BOOTING and can ask again.
            return self.run_status()
        return self._status_or_error()

    async def stop(self) -> RunStatus:
        """Stop the run after the step in progress: save a checkpoint, export, stop the workers.

        :raises StateError: no run is active.
        """
        if self._task is None or not self.running:
            raise StateError("no run is active")
        assert self._loop is not None
        self._loop.rollouts.stop()
        await asyncio.wait([self._task])
        if self._task.cancelled():
            raise self._board.not_running()
        return self._status_or_error()

    async def change_mixture(self, mixture: MixtureConfig) -> MixtureStatus:
        """Use another mixture from the next batch on, also after a restart.

        :raises StateError: no run is configured.
        """
        async with self._configuring:
            if self._record is None or (config := self._config) is None:
                raise StateError(NO_RUN)
            config = config.model_copy(update={"mixture": mixture})
            record = replace(self._record, config_json=config.model_dump_json())
            await self._store.put_run(record)
            self._record = record
            if self._run is not None:
                self._run = replace(self._run, config=config)
            if self._loop is not None:
                self._loop.change_mixture(mixture)
        return self.mixture_status()

    async def engine_servers(self) -> EngineServers:
        """Return the model servers behind the engine; while it starts, those elsewhere.

        :raises StateError: no run is configured.
        :raises EngineError: the engine has none.
        """
        return EngineServers(servers=await self._use_servers(None))

    async def change_servers(self, *, add: str = "", remove: str = "") -> EngineServers:
        """Add a model server to the engine, or remove one, also after a restart.

        A new server gets the latest weights before its first request. Requests of a removed one
        continue on the others.

        :raises StateError: no run is configured.
        :raises EngineError: the engine has no model servers.
        :raises RequestError: the URL cannot be used, or the server cannot be removed.
        """
        async with self._configuring:
            states = await self._use_servers(None)
            assert self._run is not None
            before = self._run.servers
            urls, url = list(before.urls), checked_url(add or remove)
            if remove:
                urls = without(url, urls, states)
            elif url not in urls:
                urls.append(url)
            started = not before.urls if before.started is None else before.started
            servers = replace(before, urls=tuple(urls), started=started)
            states = await self._use_servers(urls)
            await asyncio.to_thread(write_servers, self._parts.run_dir, self._run.run_id, servers)
            self._run = replace(self._run, servers=servers)
            if self._loop is not None:
                self._loop.change_servers(servers)
            return EngineServers(servers=states)

    async def _use_servers(self, urls: list[str] | None) -> dict[str, str]:
        if self._run is None:
            raise StateError(NO_RUN)
        if (workers := self.workers) is not None:
            return await workers.engine.use_servers(urls)
        # The list is for the next start of the engine.
        known = self._run.servers.urls if urls is None else urls
        return dict.fromkeys(known, "not used: the engine does not run")

    async def change_budget(self, budget: BudgetConfig) -> BudgetConfig:
        """Use another budget, also after a restart.

        :raises StateError: no run is configured.
        """
        async with self._configuring:
            if (config := self._config) is None:
                raise StateError(NO_RUN)
            await self._parts.spending.choose_budget(config.budget, budget)
        self._events.emit("run", {"what": "budget_changed", **budget.model_dump()})
        return budget

    @property
    def overspent(self) -> str:
        """Why the run may not continue; "" if its budget suffices."""
        config = self._config
        return "" if config is None else self._parts.spending.overspent(config.budget)

    @property
    def unpriced(self) -> list[str]:
        """What the budget does not cover because it has no price."""
        config = self._config
        return [] if config is None else self._parts.spending.unpriced(config.budget)

    def spending(self) -> Spending | None:
        """Return what the run has spent, and how long it will take; None without a run."""
        if (config := self._config) is None:
            return None
        left = None if config.steps is None else max(0, config.steps - self.step)
        return self._parts.spending.spending(config.budget, left)

    def phase(self) -> str | None:
        """Return in which phase time passes now; None while no run is active."""
        state = self._board.state
        if state not in {ServerState.ROLLING, ServerState.PAUSED}:
            return _PHASES.get(state)
        rolling = state is ServerState.ROLLING and len(self._parts.episodes.open) > 0
        if self._loop is not None and self._loop.training_step is not None:
            # The mode async: the state does not show the training.
            return "overlap" if rolling else "train"
        if state is ServerState.PAUSED:
            return PAUSED
        return ROLLOUT if rolling else IDLE

    def mixture_status(self) -> MixtureStatus:
        """Return the mixture, and how full the batch is.

        :raises StateError: no run is configured.
        """
        if (config := self._config) is None:
            raise StateError(NO_RUN)
        builder = self._parts.admission.builder if self.running else None
        tags = builder.tags() if builder is not None else None
        step = builder.slots.step if builder is not None else self.step + 1
        return MixtureStatus(config=config.mixture, step=step, tags=tags or {})

    def rollout_status(self) -> RolloutStatus | None:
        """Return how rollouts and training alternate; None while no run is active."""
        if self._loop is None or not self.running:
            return None
        rollout = self._loop.run.config.rollout
        metrics = self._loop.last_step.metrics if self._loop.last_step is not None else {}
        return RolloutStatus(
            mode=rollout.mode,
            max_staleness=rollout.max_staleness,
            training_step=self._loop.training_step,
            staleness_mean=metrics.get("staleness_mean"),
            staleness_max=metrics.get("staleness_max"),
        )

    @property
    def _config(self) -> RunConfig | None:
        """The configuration of the run, which this process may be unable to run."""
        if self._record is None:
            return None
        return stored_config(self._record)

    async def pause(self, reason: str) -> RunStatus:
        """Start no episodes and train no batches until `resume`, even after a server restart.

        :raises StateError: no run is active.
        """
        loop = self._active_loop()
        await self._write_paused(reason)
        loop.rollouts.pause(reason)
        self._events.emit("run", {"what": "paused", "reason": reason})
        return self.run_status()

    async def preflight(self) -> RunStatus:
        """Check the next batch before it is trained; start the run unless it is active.

        :raises StateError: no run is configured.
        """
        async with self._configuring:
            if not self.running:
                await self._start()
        self._active_loop().preflights.request()
        return self.run_status()

    async def resume(self, request: ResumeRequest) -> RunStatus:
        """Undo a pause by an operator or by the run itself; no effect if the run is not paused.

        If the request names a step, the run goes back to its checkpoint first, after the step in
        progress is trained. The request to go back is durable when this returns.

        :raises StateError: no run is active, the step has no intact checkpoint, or the budget is
            spent.
        """
        loop = self._active_loop()
        if over := self.overspent:
            raise StateError(f"{over}, then resume the run again")
        was = self.paused
        if request.from_step is None:
            await self._write_paused("")
            loop.resume()
        else:
            back = GoBack(request.from_step, request.retrain)
            await self._check_checkpoint(back.step)
            await self._write_back(back, paused="")
            loop.go_back(back)
        if was:
            self._events.emit("run", {"what": "resumed"})
        return self.run_status()

    async def _check_checkpoint(self, step: int) -> None:
        """Check that `step` has an intact checkpoint.

        :raises StateError: it has none.
        """
        folder = CheckpointFolder(self._parts.run_dir)
        if step == 0:
            return
        if await asyncio.to_thread(folder.at, step, self.run_id or "") is not None:
            return
        others = ", ".join(str(other) for other in folder.steps() if other != step)
        state = "is damaged" if step in folder.steps() else "does not exist"
        instead = (
            f"; use one of these steps: {others}, or 0"
            if others
            else ", and there are no other checkpoints; use step 0"
        )
        raise StateError(
            f"the checkpoint of step {step} {state}{instead} for the model that the run started "
            "with"
        )

    async def shutdown(self) -> None:
        """Stop the workers but not the run: it resumes when the server restarts."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._parts.spare.close()

    def run_status(self) -> RunStatus:
        """Return the configured run and its state.

        :raises StateError: no run is configured.
        """
        if self._record is None:
            raise StateError(NO_RUN)
        return RunStatus(
            run_id=self._record.run_id,
            state=self._board.state,
            config=stored_config(self._record),
            export_dir=str(self._export_dir) if self._export_dir else None,
        )

    def _status_or_error(self) -> RunStatus:
        if self.error is not None:
            raise error_from_payload(self.error.model_dump())
        return self.run_status()

    async def _evaluation_counts(self, config: RunConfig) -> list[EvaluationCount]:
        """Return the counts of earlier evaluation episodes; `config` defines which pass."""
        return await self._store.evaluation_counts(pass_reward=config.evaluation.pass_reward)

    async def _has_history(self) -> bool:
        """Return whether the run has samples or weights, which fix parts of its configuration."""
        return self.step > 0 or bool((await self._store.counters())["episodes"])

    async def _start(self) -> None:
        if self._record is None:
            raise StateError(NO_RUN)
        if over := self.overspent:
            raise StateError(f"{over}, then start the run again")
        if self._run is None:
            config = stored_config(self._record)
            self._run = await self._resolve(self._record.run_id, config)
        record = replace(self._record, active=True)
        await self._store.put_run(record)
        self._record = record
        self._launch()

    async def _require_same(self, record: RunRecord, config: RunConfig) -> None:
        """Reject a configuration that differs from that of the active run."""
        active = stored_config(record)
        asked = (await self._resolve(record.run_id, config)).config
        differing = [n for n in RunConfig.model_fields if getattr(asked, n) != getattr(active, n)]
        if differing:
            live = (
                ". To change only its mixture, use `ajet mixture` (PUT /v1/mixture)"
                if "mixture" in differing
                else ". To change only its budget, use `ajet budget` (PUT /v1/budget)"
                if "budget" in differing
                else ""
            )
            raise StateError(
                f"a run is active whose settings differ in: {', '.join(differing)} (server state: "
                f"{self._board.state}). Stop that run first{live}"
            )

    def _active_loop(self) -> RunLoop:
        if self._loop is None or not self.running:
            raise StateError("no run is active")
        return self._loop

    async def _resolve(self, run_id: str, config: RunConfig) -> ResolvedRun:
        plugins = self._parts.plugins
        return await asyncio.to_thread(resolve_run, run_id, config, self._settings, plugins)

    async def _write_paused(self, reason: str) -> None:
        # The lock keeps concurrent writers from restoring an old value.
        async with self._configuring:
            assert self._record is not None
            record = replace(self._record, paused=reason)
            await self._store.put_run(record)
            self._record = record

    async def _pausing(self, reason: str) -> None:
        """Store why the run pauses itself, if the store can be used."""
        try:
            await self._write_paused(reason)
        except StoreError as error:
            # If the server is restarted now, the run continues unless the reason persists.
            _log.error("cannot store that the run is paused: %s", error.message)
            assert self._record is not None
            self._record = replace(self._record, paused=reason)

    async def _write_back(self, back: GoBack | None, *, paused: str | None = None) -> None:
        """Store what the run is to go back to, so that it does so even if it is killed first."""
        async with self._configuring:
            assert self._record is not None
            record = replace(
                self._record,
                paused=self._record.paused if paused is None else paused,
                back_to=back.step if back is not None else None,
                retrains=back is not None and back.retrain,
            )
            await self._store.put_run(record)
            self._record = record

    async def _went_back(self) -> None:
        await self._write_back(None)

    def _launch(self) -> None:
        assert self._run is not None
        self.error = None
        self._export_dir = None
        self._board.set(ServerState.BOOTING)
        record = self._record
        back = None
        if record is not None and record.back_to is not None:
            back = GoBack(record.back_to, record.retrains)
        self._loop = RunLoop(
            self._run,
            self._parts,
            paused=self.paused or "",
            pausing=self._pausing,
            back=back,
            went_back=self._went_back,
        )
        self._task = asyncio.create_task(self._run_to_end(self._loop))

    async def _run_to_end(self, loop: RunLoop) -> None:
        run_id = loop.run.run_id
        try:
            with self._parts.episodes.listening(loop.rollouts.episode_finished):
                self._export_dir = await loop.to_end()
            await self._deactivate()
            self._events.emit("run", {"what": "stopped", "run_id": run_id, "step": loop.step})
            await self._finish_logs("stopped" if loop.rollouts.stop_requested else "done")
        except AjetError as error:
            await self._end_failed(error)
        except asyncio.CancelledError:
            _log.info("run %s interrupted at step %d", run_id, loop.step)
            # The server waits for the loggers when it closes them.
            self._parts.finish_logs("interrupted")
            raise
        # Any other error is a defect of the server or a plugin: it must appear in the status and
        # the log, not be lost in a task.
        except Exception as error:  # noqa: BLE001
            _log.exception("run %s failed", run_id)
            await self._end_failed(AjetError(f"the run failed: {type(error).__name__}: {error}"))
        finally:
            self._board.set(ServerState.OFFLINE)

    async def _deactivate(self) -> None:
        async with self._configuring:
            assert self._record is not None
            record = replace(self._record, active=False, paused="")
            await self._store.put_run(record)
            self._record = record

    async def _end_failed(self, error: AjetError) -> None:
        self._fail(error)
        try:
            # An operator must restart a run that failed; the next server start must not.
            await self._deactivate()
        except StoreError as second:
            _log.error("cannot record that the run failed: %s", second.message)
        await self._finish_logs("failed", error.message)

    async def _finish_logs(self, reason: EndReason, message: str = "") -> None:
        self._parts.finish_logs(reason, message)
        await self._parts.loggers.settled()

    def _fail(self, error: AjetError) -> None:
        _log.error("%s", error.message)
        self.error = ErrorDetail(**error.to_payload())
        self._events.emit("run", {"what": "failed", "error": error.to_payload()})
