"""Directories of weights are compared by the heads of their files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ajet_core.errors import EngineError
from ajet_engines.served import check_weights


def write(directory: Path, shapes: dict[str, tuple[int, ...]], *, tied: bool = True) -> Path:
    """Files of zeros, one for each tensor, as a model in shards has them."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps({"tie_word_embeddings": tied}))
    for number, (name, shape) in enumerate(shapes.items()):
        size = 4
        for n in shape:
            size *= n
        entry = {"dtype": "F32", "shape": list(shape), "data_offsets": [0, size]}
        head = json.dumps({"__metadata__": {"format": "pt"}, name: entry}).encode()
        data = len(head).to_bytes(8, "little") + head + bytes(size)
        (directory / f"model-{number}.safetensors").write_bytes(data)
    return directory


SHAPES = {"embed.weight": (4, 3), "norm.weight": (3,)}


def test_the_same_tensors_are_taken(tmp_path: Path) -> None:
    model, found = write(tmp_path / "model", SHAPES), write(tmp_path / "new", SHAPES)
    check_weights(found, model)


def test_a_tied_output_matrix_may_be_there_or_not(tmp_path: Path) -> None:
    model = write(tmp_path / "model", SHAPES)
    more = {**SHAPES, "lm_head.weight": (4, 3)}
    check_weights(write(tmp_path / "new", more), model)
    with pytest.raises(EngineError, match=r"lm_head\.weight is \(4, 3\), not there"):
        check_weights(write(tmp_path / "untied", more, tied=False), model)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({**SHAPES, "norm.weight": (4,)}, r"norm.weight is \(4,\), not \(3,\)"),
        ({"embed.weight": (4, 3)}, "norm.weight is missing"),
        ({**SHAPES, "other": (1,)}, r"other is \(1,\), not there"),
        ({}, "no \\*.safetensors file"),
    ],
)
def test_other_tensors_are_refused_by_name(
    tmp_path: Path, shapes: dict[str, tuple[int, ...]], words: str
) -> None:
    model = write(tmp_path / "model", SHAPES)
    with pytest.raises(EngineError, match=words):
        check_weights(write(tmp_path / "new", shapes), model)


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b + b"x", lambda b: b[:5], lambda _: b""]
)
def test_files_that_are_not_whole_are_refused(tmp_path: Path, damage) -> None:
    model, found = write(tmp_path / "model", SHAPES), write(tmp_path / "new", SHAPES)
    file = found / "model-1.safetensors"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(EngineError, match="cannot read"):
        check_weights(found, model)


def test_a_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="cannot read"):
        check_weights(tmp_path / "nowhere", write(tmp_path / "model", SHAPES))
