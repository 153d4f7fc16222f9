"""What the plugin registers. This module is light: it names what it does not import."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.interfaces import EngineCapabilities
from ajet_core.plugin import EngineSpec, hookimpl

WEIGHT_CHANNELS = ("safetensors_dir",)
MAX_TOP_LOGPROBS = 20


@hookimpl
def ajet_register_engines() -> Sequence[EngineSpec]:
    """Register the engine ``endpoint``."""
    return [
        EngineSpec(
            name="endpoint",
            target="ajet_endpoint.engine:EndpointEngine",
            settings="ajet_endpoint.settings:EndpointEngineSettings",
            summary="any HTTP endpoint that takes and returns token ids",
            capabilities=EngineCapabilities(
                weight_channels=WEIGHT_CHANNELS, max_top_logprobs=MAX_TOP_LOGPROBS
            ),
        )
    ]
