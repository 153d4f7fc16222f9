"""The trainer's side of the probe: what the weights that it publishes say of a fixed text."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

from ajet_core.errors import TrainerError, WeightsLostError
from ajet_core.interfaces import Probe, WeightUpdate
from ajet_core.probe import probe_ids
from ajet_core.timeline import (
    TrainBatch,
    TrainCall,
    TrainEpisode,
    TrainSegment,
    TrainSpan,
    TrainTree,
)
from ajet_server.run.run_setup import ResolvedRun
from ajet_server.workers.run_workers import RunWorkers

_log = logging.getLogger("ajet.server")


def wants_probe(run: ResolvedRun, workers: RunWorkers, update: WeightUpdate) -> bool:
    """Whether the engine can prove these weights by a probe alone, and the trainer can score one.

    Adapters are merged when they are published. What rounding takes of an update then looks like a server that did not
    follow, so that such runs are not probed.
    """
    unsaid = workers.engine_info.needs_probe or not update.checksums
    can = run.rehearses and run.capabilities.seals and run.config.model.lora is None
    return unsaid and can and not run.together


async def probed(run: ResolvedRun, workers: RunWorkers, update: WeightUpdate) -> WeightUpdate:
    """The update with the trainer's logprobs of the probe, if they are wanted; it is the trainer's present weights.

    :raises WorkerDiedError: the trainer's worker died of it.
    :raises WeightsLostError: the trainer has to be put back to a checkpoint.
    """
    if not wants_probe(run, workers, update):
        return update
    info = workers.engine_info
    ids = probe_ids(info.vocab_size, info.max_context)
    batch = batch_of_one("probe", ids, update.policy_version + 1)
    try:
        report = await workers.trainer.rehearse(batch)
    except WeightsLostError:
        raise
    except TrainerError as error:
        _log.warning("no probe of policy version %d: %s", update.policy_version, error.message)
        return update
    logprobs = report.logprobs[0] if report.logprobs else []
    if len(logprobs) != len(ids) - 1 or not all(map(math.isfinite, logprobs)):
        _log.warning("the trainer gives no logprobs of the probe; nothing proves its weights")
        return update
    seconds = update.seal_seconds + report.seconds
    return replace(update, probe=Probe(ids, logprobs), seal_seconds=seconds)


def batch_of_one(name: str, ids: list[int], step: int) -> TrainBatch:
    """A batch of one episode with one call of the present weights; all its tokens but the first are trained."""
    sampled = len(ids) - 1
    # No token is likelier than this, so that no importance weight is large.
    call = TrainCall(name, 0, 1.0, 1.0, [-1.0] * sampled, [step - 1] * sampled)
    tree = TrainTree([TrainSegment(-1, ids, [TrainSpan(1, 0, 0, sampled)])])
    return TrainBatch(name, step, [TrainEpisode(name, name, 1.0)], [call], [tree], len(ids))
