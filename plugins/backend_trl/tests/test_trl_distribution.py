"""How a model may be divided among processes, and what accelerate is told of it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from accelerate import DeepSpeedPlugin
from ajet_backend_trl.settings import DeepSpeedSettings, TrlTrainerSettings
from ajet_backend_trl.zero import zero_config
from batches import make

from ajet_core.errors import ConfigError
from ajet_core.protocol import AlgorithmConfig

FSDP = {"processes": 2, "distribution": "fsdp"}
ZERO = {"processes": 2, "distribution": "deepspeed"}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"distribution": "fsdp"}, "set processes to 2"),
        ({"distribution": "deepspeed"}, "set processes to 2"),
        ({"distribution": "tensor"}, "ddp"),
        ({"processes": 2, "fsdp": {"cpu_offload": True}}, "fsdp has settings"),
        ({**FSDP, "deepspeed": {"zero_stage": 3}}, "deepspeed has settings"),
        ({**FSDP, "fsdp": {"auto_wrap_policy": "SIZE_BASED_WRAP"}}, "NO_WRAP"),
        ({**FSDP, "fsdp": {"activation_checkpointing": True}}, "Extra inputs"),
        (
            {
                **FSDP,
                "fsdp": {
                    "auto_wrap_policy": "NO_WRAP",
                    "transformer_layer_cls_to_wrap": ["Qwen2DecoderLayer"],
                },
            },
            "TRANSFORMER_BASED_WRAP",
        ),
        ({**ZERO, "deepspeed": {"zero_stage": 1}}, "2 or 3"),
        ({**ZERO, "deepspeed": {"offload_param": True}}, "zero_stage 3"),
        ({**ZERO, "deepspeed": {"zero_optimization": {"stage": 3}}}, "cannot be set"),
        (
            {**ZERO, "deepspeed": {"zero_optimization": {"nvme_path": "/etc"}}},
            "valid boolean|valid integer",
        ),
        ({**ZERO, "deepspeed": {"config": "/etc/zero.json"}}, "Extra inputs"),
    ],
)
def test_settings_that_contradict_or_reach_out_are_refused(settings, says):
    with pytest.raises(ValueError, match=says):
        TrlTrainerSettings(**settings)


def test_deepspeed_is_given_a_configuration_that_partitions_as_the_settings_say():
    options = DeepSpeedSettings(
        zero_stage=3,
        offload_optimizer=True,
        offload_param=True,
        zero_optimization={"overlap_comm": True, "stage3_prefetch_bucket_size": 1000},
    )
    config = zero_config(options, AlgorithmConfig(max_grad_norm=0.5), bf16=True)
    plugin = DeepSpeedPlugin(hf_ds_config=config, zero3_init_flag=False)
    found = plugin.deepspeed_config
    assert plugin.zero_stage == 3
    assert found["zero_optimization"] == {
        "stage": 3,
        "overlap_comm": True,
        "stage3_prefetch_bucket_size": 1000,
        "offload_optimizer": {"device": "cpu"},
        "offload_param": {"device": "cpu"},
    }
    assert found["bf16"] == {"enabled": True}
    assert found["gradient_clipping"] == 0.5


@pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is not None, reason="DeepSpeed is installed here"
)
def test_without_deepspeed_the_error_says_how_to_install_it(models, tmp_path: Path):
    with pytest.raises(ConfigError, match="pip install deepspeed") as refused:
        make(models(), tmp_path, **ZERO)
    assert sys.executable in refused.value.message
    assert refused.value.param == "trainer.settings.distribution"
    # Nothing was begun.
    assert not torch.distributed.is_initialized()
