"""What the suite of all engines does not ask of shaping."""

from __future__ import annotations

import pytest
from ajet_backend_torch.engine import TorchEngine
from ajet_backend_torch.settings import TorchEngineSettings
from test_engine import request

from ajet_core.errors import UnsupportedError
from ajet_core.protocol import ModelConfig


async def test_a_model_without_a_tokenizer_has_no_grammars(models, context):
    engine = TorchEngine(TorchEngineSettings(device="cpu"), context)
    await engine.start(ModelConfig(path=models("llama")))
    with pytest.raises(UnsupportedError, match=r"tokenizer\.json is missing"):
        async for _ in engine.generate(request([1], grammar='start: "a"', stop_token_ids=(2,))):
            pass
    await engine.close()
