"""Preflight: rehearse a run's first batch before training, without applying it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ajet_core.errors import StepRefusedError, TrainerError, WeightsLostError
from ajet_core.interfaces import BatchRecord, SealReport, StepReport
from ajet_core.protocol import PreflightCheck, PreflightConfig, PreflightReport
from ajet_core.timeline import TrainBatch
from ajet_server.run.batch_preparation import prepare_batch
from ajet_server.run.preflight_checks import Evidence, Longest, check_all, lost_messages
from ajet_server.run.probing import batch_of_one
from ajet_server.run.run_setup import ResolvedRun
from ajet_server.run.run_workers import RunWorkers
from ajet_server.run.step import trainer_alone
from ajet_server.store.run_store import RunStore

# A longer episode would take minutes on a CPU, whose memory is sufficient anyway.
_MOST_ON_CPU = 4096
# A batch that fails another check changes no weights, and the next one may pass.
_HARMFUL = frozenset({"logprobs", "tools", "memory"})
# The prefix of the reason of a pause after a failed preflight.
_FAILED = "the preflight of step"


async def preflight(
    run: ResolvedRun,
    workers: RunWorkers,
    record: BatchRecord,
    *,
    store: RunStore,
    seal: SealReport,
    clock: Callable[[], float],
    refusable: bool = False,
) -> PreflightReport:
    """Check whether a batch can be trained as the run is configured.

    :param seal: how the present weights were proven.
    :param refusable: raise if the trainer cannot compute the batch, instead of reporting it.
    :raises StepRefusedError: the trainer cannot compute the batch, and `refusable` is set.
    :raises UnprocessableError: some of its episodes cannot be processed.
    :raises WorkerDiedError: the batch crashed the trainer's worker.
    :raises WeightsLostError: the trainer must be restored from a checkpoint.
    """
    began = clock()
    data = (await prepare_batch(run, store, record, workers.trainer_info)).data
    by_episode = await store.calls(record.episode_ids)
    calls = [
        call
        for its_calls in by_episode.values()
        for call in its_calls
        if call.finish_reason != "abort"
    ]
    rehearsal: StepReport | None = None
    refusal, failure = "", ""
    limit = _limit(run)
    seen = max((call.length for call in calls), default=0)
    tried = 0
    if run.rehearses:
        async with trainer_alone(run, workers):
            rehearsal, refusal, failure = await _rehearsed(workers, data.batch)
            if rehearsal is not None and rehearsal.tokens_trained:
                tried = seen
            longer = _worth_trying(limit, seen, workers)
            if tried and longer:
                vocabulary = workers.engine_info.vocab_size
                ids = [number % vocabulary for number in range(longer)]
                made_up = batch_of_one("preflight", ids, record.step)
                _, _, failure = await _rehearsed(workers, made_up)
                tried = tried if failure else longer
    evidence = Evidence(
        data.batch,
        calls,
        data.findings,
        seal,
        Longest(seen, limit, tried, failure),
        rehearsal,
        refusal,
        record.step - 1,
        run.uses_rewards,
        run.config.model.lora is not None and run.config.model.lora.dropout > 0,
        {
            episode.episode_id: client
            for episode, client in zip(data.batch.episodes, data.client_of, strict=True)
        },
        await asyncio.to_thread(lost_messages, calls, run.renderer.decode),
    )
    if refusable and refusal:
        raise StepRefusedError(refusal)
    checks = await asyncio.to_thread(check_all, evidence, run.config.preflight)
    return PreflightReport(step=record.step, checks=checks, seconds=clock() - began)


def _in_words(report: PreflightReport, failed: list[PreflightCheck]) -> str:
    """Describe the failed checks, as the reason of a pause."""
    words = [f"{check.name}: {check.found}; {check.way_out}" for check in failed]
    return (
        f"{_FAILED} {report.step} failed before anything was trained: {'. '.join(words)}. "
        "Run `ajet resume` to train anyway"
    )


async def _rehearsed(workers: RunWorkers, batch: TrainBatch) -> tuple[StepReport | None, str, str]:
    """Rehearse a batch.

    :return: the report, None if there is none; the trainer's message if it failed, else ""; and
        the message again if the failure was not a refusal of the batch, else "".
    """
    try:
        return await workers.trainer.rehearse(batch), "", ""
    except StepRefusedError as error:
        return None, error.message, ""
    except WeightsLostError:
        raise
    except TrainerError as error:
        return None, error.message, error.message


def _limit(run: ResolvedRun) -> int | None:
    """Return the most tokens that the run allows for an episode in training, None without limit."""
    limits = [run.config.model.max_context, run.config.timelines.max_tokens]
    return min((limit for limit in limits if limit is not None), default=None)


def _worth_trying(limit: int | None, seen: int, workers: RunWorkers) -> int:
    """Return the number of tokens of an artificial episode to try, 0 if none is needed."""
    if limit is None or limit <= seen:
        return 0
    if workers.trainer_info.device.startswith("cuda"):
        return limit
    return limit if limit <= _MOST_ON_CPU else 0


class Preflights:
    """Decides which batches get a preflight, and keeps its report.

    :param config: the run's.
    :param paused: why the run is paused; a preflight that failed before a restart is not repeated.
    :ivar report: the last report; None if none was made since the last request.
    """

    def __init__(self, config: PreflightConfig, paused: str) -> None:
        self._first = config.enabled and not paused.startswith(_FAILED)
        self._requested = self._asked = False
        self._begun_with = (self._first, self._requested)
        self.report: PreflightReport | None = None

    def request(self) -> None:
        """Request a preflight of the next batch, whatever its step."""
        self._requested = True
        self.report = None

    def due(self, step: int) -> bool:
        """Return whether the batch of a step gets a preflight."""
        return self._requested or (self._first and step == 1)

    def begin(self) -> None:
        """Start a preflight; even if it fails, the next batch does not get one."""
        self._begun_with = (self._first, self._requested)
        self._asked, self._first, self._requested = self._requested, False, False

    def again(self) -> None:
        """Undo `begin`: episodes were left out of the batch, and the rest is to be checked."""
        self._first, self._requested = self._begun_with

    def done(self, report: PreflightReport) -> str:
        """Store the report.

        :return: why the run is to pause, "" if it is not. A requested preflight pauses for any
            failed check, others only for one that shows that training would do harm.
        """
        failed = [
            check
            for check in report.checks
            if check.verdict == "fail" and (self._asked or check.name in _HARMFUL)
        ]
        self.report = report
        return _in_words(report, failed) if failed else ""
