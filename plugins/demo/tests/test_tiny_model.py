"""The model of this package is the one that the code creates, and is copied whole or not at all."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from ajet_core.errors import ConfigError
from ajet_demo.tiny_model import MODEL, copy_tiny_model, create_tiny_model


def test_a_copy_has_every_file(tmp_path: Path) -> None:
    copy_tiny_model(tmp_path / "deep" / "model")
    copied = {path.name: path.read_bytes() for path in (tmp_path / "deep" / "model").iterdir()}
    assert copied == {path.name: path.read_bytes() for path in MODEL.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= copied.keys()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="already exists"):
        copy_tiny_model(tmp_path)


def test_a_copy_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(OSError, match="No space left"):
        copy_tiny_model(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_its_tokenizer_and_sizes_are_those_of_the_code(tmp_path: Path) -> None:
    """If this fails, replace the files by those of ``create_tiny_model(directory, seed=0)``."""
    pytest.importorskip("torch")
    from safetensors.numpy import load_file

    create_tiny_model(tmp_path / "model", seed=0, warmup_steps=0)
    for path in (tmp_path / "model").glob("token*.json"):
        assert (MODEL / path.name).read_text() == path.read_text()
    template = "chat_template.jinja"
    assert (MODEL / template).read_text() == (tmp_path / "model" / template).read_text()
    ours, created = (load_file(d / "model.safetensors") for d in (MODEL, tmp_path / "model"))
    shapes = {name: (tensor.shape, tensor.dtype) for name, tensor in created.items()}
    assert {name: (tensor.shape, tensor.dtype) for name, tensor in ours.items()} == shapes


@pytest.mark.nightly
def test_its_weights_are_those_of_the_code(tmp_path: Path) -> None:
    """Processors round differently, and the warm-up's steps make more of it."""
    pytest.importorskip("torch")
    import numpy as np
    from safetensors.numpy import load_file

    create_tiny_model(tmp_path / "model", seed=0)
    created = load_file(tmp_path / "model" / "model.safetensors")
    for name, tensor in load_file(MODEL / "model.safetensors").items():
        np.testing.assert_allclose(created[name], tensor, rtol=0, atol=0.02, err_msg=name)
