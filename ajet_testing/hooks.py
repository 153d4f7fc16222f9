"""Registers the scripted engine and trainer. Only for tests, so there is no entry point."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.interfaces import EngineCapabilities, TrainerCapabilities
from ajet_core.plugin.components import EngineSpec, TrainerSpec
from ajet_core.plugin.spec import hookimpl
from ajet_testing import scripted_engine, scripted_trainer


@hookimpl
def ajet_register_engines() -> Sequence[EngineSpec]:
    """The engine ``scripted``, and ``obedient``, which also declares support for grammars."""
    return tuple(
        EngineSpec(
            name=name,
            target="ajet_testing.scripted_engine:ScriptedEngine",
            settings="ajet_testing.scripted_engine:ScriptedEngineSettings",
            summary=summary,
            capabilities=EngineCapabilities(
                weight_channels=scripted_engine.WEIGHT_CHANNELS,
                max_top_logprobs=scripted_engine.MAX_TOP_LOGPROBS,
                seed=True,
                sleep=True,
                grammar=grammar,
                seals=True,
            ),
        )
        for name, grammar, summary in (
            ("scripted", False, "Answers what its settings say; for tests"),
            ("obedient", True, "The same, also where the form is forced: its script has to fit"),
        )
    )


@hookimpl
def ajet_register_trainers() -> Sequence[TrainerSpec]:
    """The trainer ``scripted``."""
    return (
        TrainerSpec(
            name="scripted",
            target="ajet_testing.scripted_trainer:ScriptedTrainer",
            settings="ajet_testing.scripted_trainer:ScriptedTrainerSettings",
            summary="Records its batches; for tests",
            capabilities=TrainerCapabilities(
                weight_channels=scripted_trainer.WEIGHT_CHANNELS,
                algorithm_fields=scripted_trainer.ALGORITHM_FIELDS,
                reloads=True,
                rehearses=True,
                lora=True,
            ),
        ),
    )
