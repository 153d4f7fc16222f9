"""Refuse runs whose results depend on timing although they are to be exact."""

from __future__ import annotations

from ajet_core.errors import ConfigError
from ajet_core.plugin import EngineSpec, TrainerSpec
from ajet_core.protocol import RunConfig


def check_exact(config: RunConfig, engine: EngineSpec, trainer: TrainerSpec, channel: str) -> None:
    """Check that nothing in the configuration makes the results of an exact run differ.

    :param channel: the weight channel of the run.
    :raises ConfigError: a component cannot compute exactly, or the batches depend on timing.
    """
    for kind, spec in (("engine", engine), ("trainer", trainer)):
        if not spec.capabilities.exact:
            raise _refused(f"the {kind} {spec.name!r} does not support exact runs", f"{kind}.name")
    rollout, batch, lora = config.rollout, config.batch, config.model.lora
    timing = {
        "rollout.mode async": rollout.mode == "async",
        "rollout.spare_tasks": rollout.spare_tasks > 0,
        "rollout.late drop": rollout.late == "drop",
        f"batch.full_by {batch.full_by}": batch.full_by != "tasks",
        "mixture": config.mixture is not None,
    }
    for name, depends in timing.items():
        if depends:
            param = name.split()[0]
            raise _refused(f"with {name}, batches depend on how long episodes take", param)
    if lora is not None and lora.dropout > 0:
        raise _refused(
            "dropout makes the trainer's logprobs differ from the engine's", "model.lora.dropout"
        )
    if lora is not None and channel != "in_process":
        raise _refused(
            f"with the weight channel {channel}, the engine serves merged adapters, which the "
            "trainer does not compute with",
            "weight_channel",
        )


def _refused(reason: str, param: str) -> ConfigError:
    return ConfigError(
        f"exact: {reason}; choose another value, or set exact to false (docs/exact.md)", param=param
    )
