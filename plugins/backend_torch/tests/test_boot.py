"""What a worker need not do again, or at all, before it can train."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from ajet_backend_torch import measurements
from ajet_backend_torch import policy as policy_module
from ajet_backend_torch.settings import TorchTrainerSettings
from ajet_backend_torch.trainer import TorchTrainer
from tiny_models import write_model

import ajet_core
from ajet_core.interfaces import TrainerInfo, WorkerContext
from ajet_core.protocol import AlgorithmConfig, LoraConfig, ModelConfig
from ajet_core.timeline import CostModel

COSTS = CostModel(per_pass=2e-3, per_token=1e-5, per_pair=0.0, per_gathered=1e-7)


@pytest.mark.nightly
def test_peft_is_imported_by_runs_with_adapters_only(model_dir, tmp_path):
    code = (
        "import sys; from pathlib import Path\n"
        "from ajet_backend_torch.settings import TorchTrainerSettings\n"
        "from ajet_backend_torch.trainer import TorchTrainer\n"
        "from ajet_core.interfaces import WorkerContext\n"
        "from ajet_core.protocol import AlgorithmConfig, LoraConfig, ModelConfig\n"
        "def start(lora):\n"
        "    settings = TorchTrainerSettings(device='cpu', measure_costs=False)\n"
        f"    trainer = TorchTrainer(settings, WorkerContext(Path({str(tmp_path)!r})))\n"
        f"    trainer.start(ModelConfig(path={model_dir!r}, lora=lora), AlgorithmConfig())\n"
        "    trainer.publish('safetensors_dir', 1)\n"
        "start(None)\n"
        "assert 'peft' not in sys.modules\n"
        "start(LoraConfig(rank=2))\n"
        "assert 'peft' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class Starts:
    """Starts of trainers in one run directory; `measured` counts what each had to find out anew."""

    def __init__(self, model_dir: str, run_dir: Path) -> None:
        self._model_dir = model_dir
        self.run_dir = run_dir
        self.costs: CostModel | None = COSTS
        self.exact = True
        self.measured: list[str] = []

    def measure(self, *_: object, **__: object) -> CostModel:
        self.measured.append("costs")
        if self.costs is None:
            raise torch.OutOfMemoryError("no room")
        return self.costs

    def probe(self, *_: object) -> bool:
        self.measured.append("trees")
        return self.exact

    def start(
        self,
        model: dict[str, object] | None = None,
        token_budget: int | None = None,
        **options: object,
    ) -> TrainerInfo:
        """What a start says of the trainer."""
        self.measured.clear()
        options = {"device": "cpu", **options}
        trainer = TorchTrainer(TorchTrainerSettings(**options), WorkerContext(self.run_dir))
        chosen = ModelConfig(**{"path": self._model_dir, **(model or {})})
        return trainer.start(chosen, AlgorithmConfig(token_budget=token_budget))


@pytest.fixture
def starts(model_dir, tmp_path, monkeypatch):
    starts = Starts(model_dir, tmp_path / "run")
    monkeypatch.setattr(policy_module, "measured_costs", starts.measure)
    monkeypatch.setattr(policy_module, "trees_are_exact", starts.probe)
    return starts


def test_a_later_start_of_a_run_plans_as_the_first_without_measuring(starts):
    first = starts.start()
    assert first.costs == COSTS
    assert starts.measured == ["trees", "costs"]
    starts.costs = CostModel(1.0, 1.0, 1.0)
    assert starts.start() == first
    assert starts.measured == []


def test_what_was_measured_for_real_is_found_again(model_dir, tmp_path):
    starts = Starts(model_dir, tmp_path)
    assert starts.start() == starts.start()


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"dtype": "bfloat16"}},
        {"model": {"lora": LoraConfig(rank=2)}},
        {"model": {"max_context": 100}},
        {"token_budget": 100},
        {"gradient_checkpointing": True},
        {"measure_costs": False},
        {"threads": 2},
    ],
    ids=str,
)
def test_other_settings_are_measured_anew(changes, starts):
    starts.start()
    starts.start(**changes)
    assert starts.measured[0] == "trees"
    starts.start(**changes)
    assert starts.measured == []


@pytest.mark.parametrize("lora", [{"alpha": 3.0}, {"dropout": 0.1}, {"target_modules": ["q_proj"]}])
def test_other_adapters_are_measured_anew(lora, starts):
    starts.start({"lora": LoraConfig(rank=2)})
    starts.start({"lora": LoraConfig(rank=2, **lora)})
    assert starts.measured == ["trees", "costs"]


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (measurements, "FORMAT"),
        (ajet_core, "__version__"),
        (torch, "__version__"),
        (transformers, "__version__"),
    ],
)
def test_other_versions_measure_anew(owner, name, starts, monkeypatch):
    starts.start()
    monkeypatch.setattr(owner, name, 99 if name == "FORMAT" else "2.99.0")
    starts.start()
    assert starts.measured == ["trees", "costs"]


def test_another_version_of_the_plugin_measures_anew(starts, monkeypatch):
    starts.start()
    monkeypatch.setattr(measurements, "version", lambda _: "2.99.0")
    starts.start()
    assert starts.measured == ["trees", "costs"]


def test_another_processor_measures_anew(starts, monkeypatch, tmp_path):
    starts.start()
    other = tmp_path / "cpuinfo"
    other.write_text("processor: 0\nmodel name\t: Another 3000\n")
    monkeypatch.setattr(measurements, "CPU_INFO", other)
    starts.start()
    assert starts.measured == ["trees", "costs"]


def test_the_name_of_a_gpu_is_among_the_conditions(model_dir, starts, monkeypatch):
    module: Any = SimpleNamespace(
        config=transformers.AutoConfig.from_pretrained(model_dir), named_parameters=list
    )
    names = iter(["one GPU", "another GPU"])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: next(names))
    model, options = ModelConfig(path=model_dir), TorchTrainerSettings()
    one, another = (
        measurements.conditions(module, model, options, torch.device("cuda"), 8) for _ in range(2)
    )
    assert one != another


def test_another_configuration_of_the_same_weights_is_measured_anew(tmp_path, starts):
    path = Path(write_model(tmp_path / "m"))
    starts.start({"path": str(path)})
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-4}))
    starts.start({"path": str(path)})
    assert starts.measured == ["trees", "costs"]


def changed(**changes: object) -> object:
    """A change of the file's content."""
    return lambda content: json.dumps({**json.loads(content), **changes})


def with_cost(value: str) -> object:
    return lambda content: content.replace('"per_pass": 0.002', f'"per_pass": {value}')


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: "",
        lambda content: content[: len(content) // 2],
        lambda _: "[]",
        lambda _: "[" * 100_000,
        with_cost("NaN"),
        with_cost("Infinity"),
        with_cost("1e300"),
        with_cost("-0.002"),
        with_cost('"0.002"'),
        with_cost("null"),
        changed(costs=None),
        changed(costs={"per_pass": 0, "per_token": 0, "per_pair": 0, "per_gathered": 0}),
        changed(costs={"per_pass": 1.0}),
        changed(trees="yes"),
        changed(conditions={}),
        changed(conditions=[]),
        changed(unknown=1),
    ],
)
def test_a_damaged_or_foreign_file_is_ignored_and_written_anew(damage, starts):
    first = starts.start()
    path = starts.run_dir / measurements.FILE
    whole = path.read_text()
    path.write_text(damage(whole))
    assert path.read_text() != whole
    assert starts.start() == first
    assert starts.measured == ["trees", "costs"]
    assert path.read_text() == whole


def test_without_room_for_the_file_a_trainer_starts(starts, caplog):
    (starts.run_dir / measurements.FILE).mkdir(parents=True)
    assert starts.start().costs == COSTS
    assert f"cannot write {starts.run_dir / measurements.FILE}" in caplog.text


def test_what_failed_at_a_start_is_tried_again(starts):
    starts.exact = False
    assert not starts.start().trees
    starts.exact, starts.costs = True, None
    assert starts.start().trees
    assert starts.measured == ["trees", "costs"]
    starts.costs = COSTS
    assert starts.start().costs == COSTS


def test_a_model_without_trees_is_not_measured_twice(models, starts):
    path = models("mistral")
    first = starts.start({"path": path})
    assert not first.trees
    assert starts.measured == ["costs"]
    assert starts.start({"path": path}) == first
    assert starts.measured == []
