"""An engine that reports too old policy versions."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from dataclasses import replace

from ajet_backend_torch.engine import TorchEngine
from altered_plugin import LaggingSettings

from ajet_core.interfaces import GenerateChunk, GenerateRequest, WorkerContext


class LaggingEngine(TorchEngine):
    """The torch engine; some calls report policy versions that are several steps too old."""

    def __init__(self, settings: LaggingSettings, context: WorkerContext) -> None:
        super().__init__(settings, context)
        self._fault = settings
        self._random = random.Random(settings.lag)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        """Generate as the torch engine does, but report older versions once the fault starts."""
        fault = self._fault
        lags = self._random.random() < fault.share
        async for chunk in super().generate(request):
            version = chunk.policy_version
            if lags and version >= fault.from_version:
                version = max(0, version - fault.lag)
            yield replace(chunk, policy_version=version)
