"""Model directories that cannot be used say why; what the plugin registers is true."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys

import pytest
import torch
from ajet_backend_torch import hooks
from ajet_backend_torch.settings import TorchEngineSettings, TorchTrainerSettings
from safetensors.torch import load_file, save_file
from tiny_models import write_model

from ajet_core.errors import ConfigError, ModelDirectoryError
from ajet_core.interfaces import Engine, Trainer
from ajet_core.protocol import AlgorithmConfig, ModelConfig
from ajet_torch.directories import whole_directory
from ajet_torch.models import context_limit, load_model, resolve_device
from ajet_training.algorithm_fields import POLICY_GRADIENT_FIELDS

CPU = torch.device("cpu")


def open_model(path: object) -> None:
    load_model(ModelConfig(path=str(path)), CPU)


@pytest.fixture
def broken(tmp_path):
    return tmp_path / "m", write_model(tmp_path / "m")


def test_a_missing_directory(tmp_path):
    with pytest.raises(ModelDirectoryError, match="does not exist"):
        open_model(tmp_path / "nowhere")


def test_no_configuration(broken):
    (broken[0] / "config.json").unlink()
    with pytest.raises(ModelDirectoryError, match=r"no config\.json"):
        open_model(broken[0])


def test_no_weights(broken):
    (broken[0] / "model.safetensors").unlink()
    with pytest.raises(ModelDirectoryError, match=r"no \*\.safetensors"):
        open_model(broken[0])


def test_pickled_weights_are_not_opened(broken):
    (broken[0] / "model.safetensors").rename(broken[0] / "pytorch_model.bin")
    with pytest.raises(ModelDirectoryError, match="convert it to safetensors"):
        open_model(broken[0])


def test_cut_off_weights(broken):
    weights = broken[0] / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    with pytest.raises(ModelDirectoryError, match=r"cannot read weight file .*model\.safetensors"):
        open_model(broken[0])


def test_a_missing_shard(broken):
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (broken[0] / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelDirectoryError, match=r"model-1\.safetensors, model-2\.safetensors"):
        open_model(broken[0])


def test_a_garbled_index(broken):
    (broken[0] / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(ModelDirectoryError, match="index"):
        open_model(broken[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("model.norm.weight"), "lack model.norm.weight"),
        (lambda w: w.update(extra=torch.zeros(1)), "have unknown extra"),
        (
            lambda w: w.update({"model.norm.weight": torch.zeros(3)}),
            "wrong shapes for model.norm.weight",
        ),
    ],
)
def test_weights_that_do_not_fit_the_configuration(broken, change, message):
    path = broken[0] / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(ModelDirectoryError, match=message):
        load_model(ModelConfig(path=broken[1]), CPU, strict=True)
    if "unknown" in message:
        open_model(broken[0])


def test_positions_that_depend_on_the_length_limit_the_context(tmp_path):
    path = write_model(tmp_path / "long", "phi3_long")
    module = load_model(ModelConfig(path=path), CPU)
    assert context_limit(module, ModelConfig(path=path)) == 128
    assert context_limit(module, ModelConfig(path=path, max_context=100)) == 100
    with pytest.raises(ConfigError, match="at most 128"):
        context_limit(module, ModelConfig(path=path, max_context=200))


def test_a_configuration_of_no_language_model(broken):
    (broken[0] / "config.json").write_text(json.dumps({"model_type": "vit"}))
    with pytest.raises(ModelDirectoryError, match="causal language model"):
        open_model(broken[0])


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": -16},
        {"num_attention_heads": 0},
        {"num_attention_heads": 3},
        {"intermediate_size": 2.5},
        {"dtype": "float17"},
        {"quantization_config": {"quant_method": "magic", "bits": 4}},
        {"quantization_config": {"bits": 4}},
        {"quantization_config": {"quant_method": "awq", "bits": 4}},
        {"rope_parameters": {"rope_type": "spiral"}},
        {"hidden_act": "none such"},
        {"layer_types": ["sideways"]},
    ],
)
def test_a_configuration_that_no_model_can_have_is_refused_in_a_sentence(broken, change):
    path = broken[0] / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ModelDirectoryError) as refused:
        open_model(broken[0])
    assert str(broken[0]) in refused.value.message
    assert "\n" not in refused.value.message


def test_remote_code_is_not_run(broken):
    config = json.loads((broken[0] / "config.json").read_text())
    config.update(
        model_type="mine", auto_map={"AutoConfig": "mine.C", "AutoModelForCausalLM": "mine.M"}
    )
    (broken[0] / "config.json").write_text(json.dumps(config))
    (broken[0] / "mine.py").write_text("raise SystemExit('ran')")
    with pytest.raises(ModelDirectoryError):
        open_model(broken[0])


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cuda_that_is_not_there():
    assert resolve_device("auto") == CPU
    with pytest.raises(ConfigError, match="0 CUDA devices"):
        resolve_device("cuda:0")


def test_settings_refuse_what_they_do_not_know():
    for kind in (TorchEngineSettings, TorchTrainerSettings):
        with pytest.raises(ValueError, match="device"):
            kind(device="tpu")
        with pytest.raises(ValueError, match="nonsense"):
            kind(nonsense=1)  # type: ignore[call-arg]


def test_registered_names_lead_to_components():
    for specs, base in (
        (hooks.ajet_register_engines(), Engine),
        (hooks.ajet_register_trainers(), Trainer),
    ):
        (spec,) = specs
        assert spec.name == "torch"
        module, name = spec.target.split(":")
        assert issubclass(getattr(importlib.import_module(module), name), base)
        module, name = spec.settings.split(":")
        assert getattr(importlib.import_module(module), name)()


def test_every_algorithm_field_is_honoured():
    # The server makes the estimator; trainers never see its settings.
    assert set(AlgorithmConfig.model_fields) - {"advantage_settings"} == POLICY_GRADIENT_FIELDS


def test_hooks_and_settings_are_light():
    code = (
        "import sys, ajet_backend_torch.hooks, ajet_backend_torch.settings; "
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_directory_appears_whole_or_not_at_all(tmp_path):
    target = tmp_path / "a" / "b"
    with whole_directory(target) as aside:
        (aside / "x").write_text("1")

    def fail() -> None:
        with whole_directory(target) as aside:
            (aside / "x").write_text("2")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert (target / "x").read_text() == "1"
    # As if the process had died in mid-replacement.
    target.rename(target.parent / ".b.replaced")
    with pytest.raises(RuntimeError):
        fail()
    assert (target / "x").read_text() == "1"
    with whole_directory(target) as aside:
        (aside / "y").write_text("3")
    assert [path.name for path in target.iterdir()] == ["y"]
    assert [path.name for path in target.parent.iterdir()] == ["b"]
