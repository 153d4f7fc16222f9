"""The torch backend loads only data from a hostile model directory or checkpoint."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import pytest

from ajet_core.errors import ModelDirectoryError, TrainerError
from ajet_core.protocol import ModelConfig
from tests.security.booby_trap import Evil, booby_trapped
from tests.security.outside import watched

pytestmark = pytest.mark.torch


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A tiny model that can be loaded."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
    )
    path = tmp_path / "model"
    LlamaForCausalLM(config).save_pretrained(path)
    return path


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "code-has-run"


def load(directory: Path) -> None:
    import torch

    from ajet_torch.models import load_model

    load_model(ModelConfig(path=str(directory)), torch.device("cpu"))


def test_code_beside_safetensors_is_not_run(directory: Path, marker: Path) -> None:
    booby_trapped(directory, marker)
    with watched() as attempts:
        load(directory)
    assert attempts == []
    assert not marker.exists()


@pytest.mark.parametrize("model_type", ["evil", None, "../evil"])
def test_a_model_that_only_its_own_code_could_load_is_refused(
    directory: Path, marker: Path, model_type: str | None
) -> None:
    booby_trapped(directory, marker, model_type=model_type, architectures=["EvilModel"])
    with watched() as attempts, pytest.raises(ModelDirectoryError):
        load(directory)
    assert attempts == []
    assert not marker.exists()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_pickled_weights_are_not_loaded_whatever_they_are_called(
    directory: Path, marker: Path, name: str
) -> None:
    (directory / "model.safetensors").unlink()
    (directory / name).write_bytes(pickle.dumps(Evil(marker)))
    with watched() as attempts, pytest.raises(ModelDirectoryError):
        load(directory)
    assert attempts == []
    assert not marker.exists()


@pytest.mark.parametrize(
    "name", ["../other/model.safetensors", "/etc/passwd", "", ".", "x/../../y", 7, None]
)
def test_an_index_of_weights_names_files_of_its_own_directory_alone(
    directory: Path, name: object
) -> None:
    other = directory.parent / "other"
    shutil.copytree(directory, other)
    index = {"metadata": {}, "weight_map": {"lm_head.weight": name}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelDirectoryError, match="index"):
        load(directory)


def test_a_checkpoint_of_pickles_is_refused(tmp_path: Path, marker: Path) -> None:
    from ajet_torch.checkpoint import load_checkpoint

    directory = tmp_path / "checkpoint"
    directory.mkdir()
    evil = pickle.dumps(Evil(marker))
    for name in ("weights.safetensors", "optimiser.safetensors", "optimizer.pt"):
        (directory / name).write_bytes(evil)
    sizes = {name: len(evil) for name in ("weights.safetensors", "optimiser.safetensors")}
    progress = {"format": 1, "steps": 1, "policy_version": 1, "seed": 0, "files": sizes}
    (directory / "trainer.json").write_text(json.dumps(progress))

    class Nothing:
        def weight_tensors(self) -> dict[str, object]:
            return {}

        def state_tensors(self) -> dict[str, object]:
            return {}

    with watched() as attempts, pytest.raises(TrainerError):
        load_checkpoint(directory, Nothing())  # type: ignore[arg-type]
    assert attempts == []
    assert not marker.exists()


def test_the_traps_do_go_off_where_they_can(tmp_path: Path, marker: Path) -> None:
    """Without this, the tests above could pass for a trap that is none."""
    with watched() as attempts:
        pickle.loads(pickle.dumps(Evil(marker)))
    assert marker.exists()
    assert any(attempt.startswith("os.system") for attempt in attempts)
