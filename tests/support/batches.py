"""Batches that are being filled, and their episodes."""

from __future__ import annotations

import itertools

from ajet_core.interfaces import EpisodeRecord
from ajet_core.protocol import BatchConfig
from ajet_server.admission.batching import BatchBuilder

_ids = itertools.count()


def episode(group: str) -> EpisodeRecord:
    return EpisodeRecord(
        episode_id=f"e{next(_ids)}",
        key_hash="",
        task_id=group,
        group=group,
        kind="train",
        tag="",
        client_id="c",
        claim_version=0,
        lease_seconds=60,
        created_at=0,
    )


def builder(full_by: str = "tasks", **changes: int) -> BatchBuilder:
    sizes = {"tasks": 2, "episodes_per_task": 2, **changes}
    return BatchBuilder(BatchConfig.model_validate({"full_by": full_by, **sizes}))
