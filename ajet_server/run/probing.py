"""The trainer's side of the probe: its logprobs of a fixed text under the published weights."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

from ajet_core.errors import TrainerError, WeightsLostError
from ajet_core.interfaces import Probe, WeightUpdate
from ajet_core.timeline import (
    TrainBatch,
    TrainCall,
    TrainEpisode,
    TrainSegment,
    TrainSpan,
    TrainTree,
)
from ajet_engines.probe import probe_ids
from ajet_server.run.run_setup import ResolvedRun
from ajet_server.run.run_workers import RunWorkers

_log = logging.getLogger("ajet.server")


def wants_probe(run: ResolvedRun, workers: RunWorkers, update: WeightUpdate) -> bool:
    """Return whether the engine needs a probe to prove these weights, and the trainer can score it.

    Runs with adapters are not probed: adapters are merged when they are published, and the rounding
    of that merge could look like a server that serves other weights.
    """
    unsaid = workers.engine_info.needs_probe or not update.checksums
    can = run.rehearses and run.capabilities.seals and run.config.model.lora is None
    return unsaid and can and not run.together


async def probed(run: ResolvedRun, workers: RunWorkers, update: WeightUpdate) -> WeightUpdate:
    """Add the trainer's logprobs of the probe to `update`, if they are needed.

    The update must be of the trainer's present weights.

    :raises WorkerDiedError: the probe crashed the trainer's worker.
    :raises WeightsLostError: the trainer must be restored from a checkpoint.
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
        _log.warning("the trainer returned no logprobs of the probe, so nothing proves its weights")
        return update
    seconds = update.seal_seconds + report.seconds
    return replace(update, probe=Probe(ids, logprobs), seal_seconds=seconds)


def batch_of_one(name: str, ids: list[int], step: int) -> TrainBatch:
    """Return a batch of one episode with one call; all its tokens but the first are trained."""
    sampled = len(ids) - 1
    # With logprobs of -1 here, no importance weight exceeds e.
    call = TrainCall(name, 0, 1.0, 1.0, [-1.0] * sampled, [step - 1] * sampled)
    tree = TrainTree([TrainSegment(-1, ids, [TrainSpan(1, 0, 0, sampled)])])
    return TrainBatch(name, step, [TrainEpisode(name, name, 1.0)], [call], [tree], len(ids))
