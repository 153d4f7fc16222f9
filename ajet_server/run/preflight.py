"""The first batch of a run, tried before it is trained: the trainer rehearses it, and nothing is applied."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ajet_core.errors import StepRefusedError, TrainerError, WeightsLostError
from ajet_core.interfaces import BatchRecord, SealReport, StepReport
from ajet_core.protocol import PreflightCheck, PreflightConfig, PreflightReport
from ajet_core.timeline import TrainBatch
from ajet_server.batches.batch_preparation import prepare_batch
from ajet_server.run.preflight_checks import Evidence, Longest, check_all
from ajet_server.run.probing import batch_of_one
from ajet_server.run.run_setup import ResolvedRun
from ajet_server.run.step import trainer_alone
from ajet_server.store.run_store import RunStore
from ajet_server.workers.run_workers import RunWorkers

# On a CPU a longer one would take minutes, and has the machine's memory anyway.
_MOST_ON_CPU = 4096
# A batch that fails another check changes no weights, and the next one may be better.
_HARMFUL = frozenset({"logprobs", "tools", "memory"})
# With these words begins the reason of a pause.
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
    """Look whether a batch can be trained as the run is configured.

    :param seal: how the present weights were proven.
    :param refusable: raise if the trainer cannot compute the batch, instead of reporting it.
    :raises StepRefusedError: why it cannot.
    :raises UnprocessableError: some of its episodes cannot be processed.
    :raises WorkerDiedError: the trainer's worker died of it.
    :raises WeightsLostError: the trainer has to be put back to a checkpoint.
    """
    began = clock()
    data = (await prepare_batch(run, store, record, workers.trainer_info)).data
    by_episode = await store.calls(record.episode_ids)
    calls = [call for made in by_episode.values() for call in made if call.finish_reason != "abort"]
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
    )
    if refusable and refusal:
        raise StepRefusedError(refusal)
    checks = await asyncio.to_thread(check_all, evidence, run.config.preflight)
    return PreflightReport(step=record.step, checks=checks, seconds=clock() - began)


def _in_words(report: PreflightReport, failed: list[PreflightCheck]) -> str:
    """What failed, for the reason of a pause."""
    words = [f"{check.name}: {check.found}; {check.way_out}" for check in failed]
    return (
        f"{_FAILED} {report.step} failed before anything was trained: {'. '.join(words)}. "
        "`ajet resume` trains nevertheless"
    )


async def _rehearsed(workers: RunWorkers, batch: TrainBatch) -> tuple[StepReport | None, str, str]:
    """The report; or why the batch was refused; or why it could not be computed."""
    try:
        return await workers.trainer.rehearse(batch), "", ""
    except StepRefusedError as error:
        return None, error.message, ""
    except WeightsLostError:
        raise
    except TrainerError as error:
        return None, error.message, error.message


def _limit(run: ResolvedRun) -> int | None:
    """Most tokens that the run allows an episode to be trained with, if it says so."""
    limits = [run.config.model.max_context, run.config.timelines.max_tokens]
    return min((limit for limit in limits if limit is not None), default=None)


def _worth_trying(limit: int | None, seen: int, workers: RunWorkers) -> int:
    """Tokens of a made-up episode; 0 if none need be tried."""
    if limit is None or limit <= seen:
        return 0
    if workers.trainer_info.device.startswith("cuda"):
        return limit
    return limit if limit <= _MOST_ON_CPU else 0


class Preflights:
    """When a batch is tried before it is trained, and what became of it.

    :param config: the run's.
    :param paused: why the run is paused; a preflight that failed before a restart is not repeated.
    :ivar report: of the last one, None while one is asked for or none was made.
    """

    def __init__(self, config: PreflightConfig, paused: str) -> None:
        self._first = config.enabled and not paused.startswith(_FAILED)
        self._requested = self._asked = False
        self._begun_with = (self._first, self._requested)
        self.report: PreflightReport | None = None

    def request(self) -> None:
        """Try the next batch, whatever step it is of."""
        self._requested = True
        self.report = None

    def due(self, step: int) -> bool:
        """Whether the batch of a step is to be tried."""
        return self._requested or (self._first and step == 1)

    def begin(self) -> None:
        """A batch is being tried; if that fails, the next one is not tried again."""
        self._begun_with = (self._first, self._requested)
        self._asked, self._first, self._requested = self._requested, False, False

    def again(self) -> None:
        """Undo `begin`: episodes of the batch are left out, and what is left is to be tried."""
        self._first, self._requested = self._begun_with

    def done(self, report: PreflightReport) -> str:
        """Remember what became of it.

        :return: why the run is to pause, "" if it is to go on: because of any check that failed if somebody asked for
            them, else because of one that says that training would do harm.
        """
        failed = [
            check
            for check in report.checks
            if check.verdict == "fail" and (self._asked or check.name in _HARMFUL)
        ]
        self.report = report
        return _in_words(report, failed) if failed else ""
