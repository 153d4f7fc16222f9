"""`ajet preflight --dry-run`: the memory of a run, by arithmetic."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import sys
import tomllib
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from ajet_cli.main import cli
from ajet_cli.memory_plan import GpuMachine, RunMemory, plan_memory, read_shape, ways_out
from ajet_cli.memory_plan.parts import GIB, MemoryPart
from ajet_cli.memory_plan.printed import memory_lines
from ajet_cli.memory_plan.shapes import ModelShape, shape_of
from ajet_cli.memory_plan.trainers import activation_bytes
from ajet_cli.run_files import read_run
from ajet_core.errors import ConfigError
from ajet_core.protocol import RunConfig
from tests.support.plugin_sources import plugin_sources

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "contrib" / "configurations"
FILES = sorted(path.name for path in LIBRARY.glob("*.toml"))
CARDS = {1: "qwen2.5-1.5b", 4: "qwen2.5-7b", 8: "qwen2.5-32b"}
SETTINGS = {
    "verl": ("backend_verl", "ajet_backend_verl.settings:VerlTrainerSettings"),
    "trl": ("backend_trl", "ajet_backend_trl.settings:TrlTrainerSettings"),
    "vllm": ("engine_vllm", "ajet_engine_vllm.settings:VllmEngineSettings"),
    "sglang": ("engine_sglang", "ajet_engine_sglang.settings:SglangEngineSettings"),
}
SMALL = ModelShape(
    name="small",
    layers=2,
    hidden=8,
    heads=4,
    kv_heads=2,
    head_dim=2,
    intermediate=16,
    vocabulary=100,
    positions=64,
    dtype="bfloat16",
)
"""A model whose sizes can be computed by hand."""


def gpus_of(name: str) -> int:
    match = re.search(r"-(\d)gpu", name)
    assert match is not None
    return int(match.group(1))


def memory_of(name: str, gpus: int | None = None) -> RunMemory:
    """The memory of one of the files, on the GPUs that it is for."""
    count = gpus_of(name)
    shape = read_shape(LIBRARY / "models" / f"{CARDS[count]}.json", "auto")
    return plan_memory(read_run(LIBRARY / name), shape, GpuMachine(gpus or count, 80 * GIB))


def config_of(**parts: Any) -> RunConfig:
    return RunConfig.model_validate({"model": {"path": "small"}, **parts})


def sizes(parts: tuple[MemoryPart, ...]) -> dict[str, int]:
    return {part.name: part.size for part in parts}


def test_there_is_a_file_for_each_pair_and_number_of_gpus() -> None:
    pairs = ("trl-vllm", "verl-sglang", "verl-vllm")
    assert [f"{pair}-{gpus}gpu.toml" for pair in pairs for gpus in (1, 4, 8)] == FILES


@pytest.mark.parametrize("name", FILES)
def test_each_file_fits_the_gpus_that_it_is_for(name: str) -> None:
    memory = memory_of(name)
    assert memory.problems == ()
    # The GPUs are neither left idle nor filled to the last byte.
    assert 0.5 * 80 * GIB < memory.peak < 0.95 * 80 * GIB
    assert memory.trainer.gpus == memory.engine.memory.gpus == gpus_of(name)
    assert memory.episodes >= 10


@pytest.mark.parametrize("name", FILES)
def test_the_components_accept_the_settings_of_each_file(name: str) -> None:
    config = read_run(LIBRARY / name)
    with plugin_sources():
        for choice in (config.trainer, config.engine):
            folder, target = SETTINGS[choice.name]
            sys.path.insert(0, str(ROOT / "plugins" / folder / "src"))
            module, _, cls = target.partition(":")
            getattr(importlib.import_module(module), cls).model_validate(choice.settings)


@pytest.mark.parametrize("name", FILES)
def test_each_file_names_the_command_that_computes_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(LIBRARY)
    command = re.search(r"^#   ajet (.*)$", (LIBRARY / name).read_text(), re.MULTILINE)
    assert command is not None
    assert f"--run {name}" in command.group(1)
    result = CliRunner().invoke(cli, [*shlex.split(command.group(1)), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["fits"] is True


def test_a_7b_model_on_four_gpus_by_hand() -> None:
    memory = memory_of("verl-vllm-4gpu.toml")
    # 28 layers of 233,057,792, two embeddings of 544,997,376, and a norm.
    parameters = 28 * 233_057_792 + 2 * 544_997_376 + 3584
    assert memory.shape.parameters == parameters == 7_615_616_512
    trainer = sizes(memory.trainer.resident) | sizes(memory.trainer.working)
    # 16 bytes a parameter, divided among four.
    assert trainer["weights"] == parameters
    assert trainer["optimiser"] == 2 * parameters
    assert trainer["gradients"] == parameters
    # The output embedding and its gradient, and the input embedding with one in both dtypes.
    assert trainer["gathered units"] == 4 * 544_997_376 + 8 * 544_997_376
    # Per layer and token: 16 x 3584 + 8 x (3584 + 512) + 8 x 18944.
    assert trainer["activations"] == (28 * 3584 * 2 + 241_664) * 8192
    assert trainer["logits"] == 10 * 152_064 * 8192
    # Keys and values: 2 x 28 layers x 4 heads x 128 numbers x 2 bytes.
    assert memory.engine.room.token_bytes == 57_344
    cache = (
        int(0.3 * 80 * GIB) - GIB - 2 * parameters - sizes(memory.engine.memory.working)["passes"]
    )
    assert memory.engine.room.tokens == cache // 57_344


def test_parts_of_a_small_model_by_hand() -> None:
    # 8x8 + 2 x 8x4 + 8x8 + 3 x 8x16 + two norms
    assert SMALL.layer_parameters == 64 + 64 + 64 + 384 + 16
    assert SMALL.parameters == 2 * 800 + 2 * 592 + 8
    assert SMALL.lora_parameters(1) == 2 * (16 + 12 + 12 + 16 + 3 * 24)
    # 2 x 2 layers x 2 heads x 2 numbers x 2 bytes; a head is on one of two GPUs, or on each of four
    assert [SMALL.kv_bytes(gpus) for gpus in (1, 2, 4)] == [32, 16, 16]
    assert activation_bytes(SMALL) == 16 * 8 + 8 * (8 + 4) + 8 * 16


def test_experts_count_all_weights_and_the_activations_of_the_active_ones() -> None:
    mixed = replace(SMALL, experts=4, active_experts=2)
    assert mixed.layer_parameters == SMALL.layer_parameters + 3 * 384 + 8 * 4
    assert activation_bytes(mixed) == activation_bytes(SMALL) + 8 * 16 + 4 * 8 * 2


@pytest.mark.parametrize(
    ("trainer", "bytes_each"),
    [
        # bfloat16 weights, float32 masters and two moments; gradients in both dtypes
        ({"name": "torch"}, (2 + 4 + 8, 4 + 2)),
        # float32 weights and two moments; float32 gradients, and bfloat16 weights of a pass
        ({"name": "trl"}, (4 + 8, 4 + 2)),
        # and what DDP averages
        ({"name": "trl", "settings": {"processes": 2}}, (4 + 8, 4 + 2 + 4)),
    ],
)
def test_what_trainers_keep_of_each_parameter(
    trainer: dict[str, Any], bytes_each: tuple[int, int]
) -> None:
    memory = plan_memory(config_of(trainer=trainer), SMALL, GpuMachine(2, 80 * GIB)).trainer
    state = memory.resident_size - GIB
    passes = sum(sizes(memory.working)[name] for name in ("activations", "logits"))
    each = (state / SMALL.parameters, (memory.working_size - passes) / SMALL.parameters)
    assert each == bytes_each


def test_offloaded_state_is_on_the_gpus_only_while_they_train() -> None:
    parts = [
        plan_memory(
            config_of(trainer={"name": "verl", "settings": {"offload": offload}}),
            SMALL,
            GpuMachine(1, 80 * GIB),
        )
        for offload in (False, True)
    ]
    moved = 12 * SMALL.parameters
    assert parts[0].trainer.resident_size - parts[1].trainer.resident_size == moved
    assert parts[0].training == parts[1].training
    assert parts[1].host - parts[0].host == moved


def test_an_engine_that_sleeps_leaves_its_memory_to_the_trainer() -> None:
    engine = {"name": "vllm", "settings": {"gpu_memory_utilization": 0.5, "sleep": True}}
    awake, asleep = (
        plan_memory(
            config_of(engine=engine, trainer={"name": "trl"}, rollout={"engine_sleeps": sleeps}),
            SMALL,
            GpuMachine(1, 80 * GIB),
        )
        for sleeps in (False, True)
    )
    assert awake.rolling_out == asleep.rolling_out
    assert awake.training - asleep.training == awake.engine.memory.working_size
    assert asleep.host - awake.host == 2 * SMALL.parameters


@pytest.mark.parametrize("name", FILES)
def test_with_gpus_of_its_own_an_engine_takes_nothing_from_the_trainer(name: str) -> None:
    together = memory_of(name)
    machine = replace(together.machine, separate=True)
    apart = plan_memory(together.config, together.shape, machine)
    trainer = together.trainer.resident_size + together.trainer.working_size
    assert apart.training == max(trainer, apart.rolling_out)
    assert apart.rolling_out < together.rolling_out
    assert apart.engine.room.tokens >= together.engine.room.tokens


def test_without_a_budget_a_micro_batch_has_the_tokens_that_the_trainer_chooses() -> None:
    wide = replace(SMALL, vocabulary=2**18)
    parts = plan_memory(config_of(trainer={"name": "trl"}), wide, GpuMachine(1, 80 * GIB)).trainer
    assert sizes(parts.working)["logits"] == 10 * 2**30


def test_the_longest_sequence_is_in_one_micro_batch() -> None:
    long = replace(SMALL, positions=50_000)
    config = config_of(trainer={"name": "trl"}, algorithm={"token_budget": 1000})
    parts = plan_memory(config, long, GpuMachine(1, 80 * GIB)).trainer
    assert sizes(parts.working)["logits"] == 10 * 100 * 50_000


def test_settings_that_make_a_run_fit_are_named() -> None:
    plain = tomllib.loads((LIBRARY / "verl-vllm-4gpu.toml").read_text())
    plain["trainer"]["settings"]["gradient_checkpointing"] = False
    shape = read_shape(LIBRARY / "models" / "qwen2.5-7b.json", "auto")
    memory = plan_memory(RunConfig.model_validate(plain), shape, GpuMachine(4, 80 * GIB))
    assert memory.problems
    ways = ways_out(memory)
    assert {"trainer.settings.gradient_checkpointing": True} in [dict(way.changes) for way in ways]
    assert all(not way.memory.problems for way in ways)


@pytest.mark.parametrize("name", ["verl-vllm-4gpu.toml", "trl-vllm-4gpu.toml"])
def test_a_run_for_more_gpus_is_fitted_to_those_that_there_are(name: str) -> None:
    shape = read_shape(LIBRARY / "models" / "qwen2.5-1.5b.json", "auto")
    memory = plan_memory(read_run(LIBRARY / name), shape, GpuMachine(2, 80 * GIB))
    assert any("needs 4 GPUs, and the machine has 2" in problem for problem in memory.problems)
    ways = ways_out(memory)
    assert ways
    for way in ways:
        assert way.memory.trainer.gpus == way.memory.engine.memory.gpus == 2


def test_several_settings_are_named_together_if_none_is_enough_alone() -> None:
    run = {
        "model": {"path": "m", "max_context": 8192},
        "trainer": {"name": "verl"},
        "engine": {"name": "vllm"},
    }
    shape = read_shape(LIBRARY / "models" / "qwen2.5-7b.json", "auto")
    memory = plan_memory(RunConfig.model_validate(run), shape, GpuMachine(8, 80 * GIB))
    (way,) = ways_out(memory)
    assert len(way.changes) > 1
    assert way.memory.problems == ()


def test_a_model_that_is_too_large_has_no_way_out() -> None:
    shape = read_shape(LIBRARY / "models" / "qwen2.5-32b.json", "auto")
    config = read_run(LIBRARY / "verl-vllm-1gpu.toml")
    memory = plan_memory(config, shape, GpuMachine(1, 16 * GIB))
    assert memory.problems
    assert ways_out(memory) == ()


@given(
    gpus=st.sampled_from([1, 2, 4, 8]),
    size=st.integers(1, 200),
    context=st.integers(128, 32768),
    trainer=st.sampled_from(["torch", "trl", "verl"]),
    engine=st.sampled_from(["sglang", "torch", "vllm"]),
)
def test_every_way_out_fits(gpus: int, size: int, context: int, trainer: str, engine: str) -> None:
    shape = read_shape(LIBRARY / "models" / "qwen2.5-1.5b.json", "auto")
    config = RunConfig.model_validate(
        {
            "model": {"path": "m", "max_context": context},
            "trainer": {"name": trainer},
            "engine": {"name": engine},
        }
    )
    memory = plan_memory(config, shape, GpuMachine(gpus, size * GIB))
    for way in ways_out(memory):
        assert way.memory.problems == ()
        assert way.memory.config != config


def test_it_is_printed_with_formulas_and_refused_with_ways_out() -> None:
    runner = CliRunner()
    given = ["preflight", "--dry-run", "--run", str(LIBRARY / "trl-vllm-4gpu.toml")]
    given += ["--model", str(LIBRARY / "models" / "qwen2.5-7b.json"), "--gpus", "4"]
    fits = runner.invoke(cli, given)
    assert fits.exit_code == 0, fits.output
    assert "4 B x 7,615,616,512 / 4" in fits.stdout
    assert fits.stdout.splitlines()[-1] == "fits"
    refused = runner.invoke(cli, [*given, "--gpu-memory", "60"])
    assert refused.exit_code == 1, refused.output
    assert "does not fit: training needs" in refused.stdout
    assert "\n  -> " in refused.stdout
    few = runner.invoke(cli, [*given[:-1], "2"])
    assert few.exit_code == 1
    assert "needs 4 GPUs, and the machine has 2" in few.stdout
    host = runner.invoke(cli, [*given, "--host-memory", "64"])
    assert "GiB of host memory are needed, and there are 64.0" in host.stdout


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--dry-run"], "pass --run FILE"),
        (["--gpus", "2"], "are for --dry-run"),
        (["--dry-run", "--run", "missing.toml"], "missing.toml does not exist: give"),
    ],
)
def test_what_is_missing_is_named(given: list[str], said: str) -> None:
    result = CliRunner().invoke(cli, ["preflight", *given])
    assert result.exit_code == 2
    assert said in result.output


def test_settings_of_an_installed_component_are_checked(tmp_path: Path) -> None:
    if not metadata.entry_points(group="agentjet", name="vllm"):
        pytest.skip("the plugin vllm is not installed")
    file = tmp_path / "run.toml"
    file.write_text(
        '[model]\npath = "m"\n[engine]\nname = "vllm"\n[engine.settings]\nreplica = 2\n'
    )
    card = str(LIBRARY / "models" / "qwen2.5-7b.json")
    result = CliRunner().invoke(
        cli, ["preflight", "--dry-run", "--run", str(file), "--model", card]
    )
    assert result.exit_code == 2
    assert "replica" in result.output


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "deepseek_v3"}, "deepseek_v3"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"intermediate_size": None}, "intermediate_size"),
        ({"dtype": "float8_e4m3fn"}, "float8_e4m3fn"),
    ],
)
def test_a_model_that_is_not_known_is_refused(changes: dict[str, Any], said: str) -> None:
    card = json.loads((LIBRARY / "models" / "qwen2.5-7b.json").read_text())
    with pytest.raises(ConfigError, match=said):
        shape_of(card | changes, Path("config.json"))


def test_a_component_that_is_not_known_is_refused() -> None:
    for part in ("trainer", "engine"):
        with pytest.raises(ConfigError, match="'other' is not known"):
            plan_memory(config_of(**{part: {"name": "other"}}), SMALL, GpuMachine(1, GIB))


def test_a_run_is_read_from_toml_and_from_json(tmp_path: Path) -> None:
    config = read_run(LIBRARY / "verl-vllm-8gpu.toml")
    file = tmp_path / "run.json"
    file.write_text(config.model_dump_json())
    assert read_run(file) == config
    file.write_text('{"model": {"path": "m"}, "batch": {"tasks": 0}}')
    with pytest.raises(ConfigError, match=r"batch\.tasks"):
        read_run(file)


FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 16},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48},
}
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 256,
}


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_are_those_that_transformers_creates(family: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(family, **SIZES, **FAMILIES[family])
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    config.save_pretrained(tmp_path)
    assert read_shape(tmp_path, "auto").parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.torch
@pytest.mark.slow
def test_activations_are_about_those_that_a_layer_keeps() -> None:
    """The bytes of all tensors that autograd saves, with weights left out, for one more layer."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokens, kept = 256, []
    sizes = SIZES | {"hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4}
    for layers in (1, 2):
        config = transformers.AutoConfig.for_model("qwen2", **sizes | {"num_hidden_layers": layers})
        model = transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
        weights = {parameter.data_ptr() for parameter in model.parameters()}
        storages: dict[int, int] = {}

        def note(
            tensor: Any, weights: set[int] = weights, storages: dict[int, int] = storages
        ) -> Any:
            storage = tensor.untyped_storage()
            if tensor.data_ptr() not in weights:
                storages[storage.data_ptr()] = storage.nbytes()
            return tensor

        ids = torch.randint(0, 320, (1, tokens))
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            output = model.model(input_ids=ids, use_cache=False)
        kept.append(sum(storages.values()))
        del output
    shape = shape_of({"model_type": "qwen2", **sizes}, Path("config.json"))
    measured = (kept[1] - kept[0]) / tokens
    assert activation_bytes(shape) == pytest.approx(measured, rel=0.25)


def test_the_page_shows_what_is_printed() -> None:
    page = (ROOT / "docs" / "preflight.md").read_text()
    examples = re.findall(
        r"^```\n(model .*?|does not fit.*?)\n```$", page, re.DOTALL | re.MULTILINE
    )
    shown = [line for line in "\n".join(examples).splitlines() if line.strip() != "..."]
    plain = tomllib.loads((LIBRARY / "verl-vllm-4gpu.toml").read_text())
    unchecked = {**plain["trainer"], "settings": {"workers_per_node": 4}}
    shape = read_shape(LIBRARY / "models" / "qwen2.5-7b.json", "auto")
    printed = []
    for run in (plain, plain | {"trainer": unchecked}):
        memory = plan_memory(RunConfig.model_validate(run), shape, GpuMachine(4, 80 * GIB))
        printed += [click.unstyle(line) for line in memory_lines(memory, ways_out(memory))]
    assert len(shown) > 8
    assert [line for line in shown if line not in printed] == []
