"""Checksums of loaded weights in SGLang's scheduler processes; imports nothing of agentjet.

SGLang's route ``/weights_checker`` reports checksums of its parameters. These are joined, split and
packed, so they match none of the published tensors. This module adds the action `LOADED`, which
reports checksums of the tensors that were loaded.
"""

from __future__ import annotations

from typing import Any

from ajet_checksums import LoadedWeights
from sglang.srt.model_executor.model_runner_components.weight_updater import WeightUpdater
from sglang.srt.utils.weight_checker import WeightChecker, overall_checksum

LOADED = "ajet_loaded"


def tell_loaded_weights() -> None:
    """Make SGLang record what it loads, and report it. Each process has one model."""
    loaded = LoadedWeights()
    from_disk = WeightUpdater.update_weights_from_disk
    begin = WeightUpdater.begin_weight_update
    received = WeightUpdater.load_weights_from_distributed
    handle = WeightChecker.handle

    def update_weights_from_disk(self: Any, *rest: Any, **named: Any) -> Any:
        loaded.begin()
        with loaded.noting(self.get_model(), self.model_config.dtype):
            return from_disk(self, *rest, **named)

    def begin_weight_update(self: Any, *rest: Any, **named: Any) -> Any:
        loaded.begin()
        return begin(self, *rest, **named)

    def load_weights_from_distributed(self: Any, *rest: Any, **named: Any) -> Any:
        with loaded.noting(self.get_model(), self.model_config.dtype):
            return received(self, *rest, **named)

    def handle_or_report(self: Any, action: str, *rest: Any, role: str, **named: Any) -> Any:
        if action != LOADED:
            return handle(self, action, *rest, role=role, **named)
        checksums = loaded.report(self._get_model().named_parameters())
        return {
            "checksums": checksums,
            "per_gpu_checksum": overall_checksum(checksums),
            "parallelism_info": self._parallelism_info(role=role).model_dump(),
        }

    WeightUpdater.update_weights_from_disk = update_weights_from_disk
    WeightUpdater.begin_weight_update = begin_weight_update
    WeightUpdater.load_weights_from_distributed = load_weights_from_distributed
    WeightChecker.handle = handle_or_report
