"""Plugin hooks that register this engine."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.interfaces import EngineCapabilities
from ajet_core.plugin import EngineSpec, hookimpl
from ajet_engines.collective import CHANNEL

WEIGHT_CHANNELS = ("safetensors_dir", CHANNEL)
MAX_TOP_LOGPROBS = 20


@hookimpl
def ajet_register_engines() -> Sequence[EngineSpec]:
    """Register the engine ``sglang``."""
    return (
        EngineSpec(
            name="sglang",
            target="ajet_engine_sglang.engine:SglangEngine",
            settings="ajet_engine_sglang.settings:SglangEngineSettings",
            summary=(
                "SGLang servers, started or attached to: tensor parallelism, radix cache, replicas"
            ),
            capabilities=EngineCapabilities(
                weight_channels=WEIGHT_CHANNELS,
                max_top_logprobs=MAX_TOP_LOGPROBS,
                sleep=True,
                penalties=True,
                grammar=True,
                seals=True,
            ),
            sleep_setting="sleep",
            memory_setting="memory_fraction",
        ),
    )
