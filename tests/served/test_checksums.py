"""Checksums of tensors, and what a server makes of them whose memory has another form."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from ajet_engines.in_server.ajet_checksums import (  # noqa: E402
    OTHERWISE,
    LoadedWeights,
    checksum,
    published,
)

NAMES = ("q_proj", "k_proj", "v_proj", "o_proj")


def weights(seed: int, dtype: object = torch.float32) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    return {
        f"model.layers.{layer}.self_attn.{name}.weight": torch.randn(6, 4, generator=generator).to(
            dtype
        )
        for layer in range(2)
        for name in NAMES
    }


def joined(tensors: dict[str, Any]) -> dict[str, Any]:
    """As servers keep them: q, k and v in one, padded with zeros, and the output transposed."""
    found = {}
    for layer in range(2):
        path = f"model.layers.{layer}.self_attn"
        parts = [tensors[f"{path}.{name}.weight"] for name in NAMES[:3]]
        found[f"{path}.qkv_proj.weight"] = torch.cat([*parts, torch.zeros(2, 4)])
        found[f"{path}.o_proj.weight"] = tensors[f"{path}.o_proj.weight"].T.contiguous()
    return found


def load(loaded: LoadedWeights, tensors: dict[str, object], dtype: object = torch.float32) -> None:
    loaded.begin()
    for _ in loaded.noted(tensors.items(), dtype):
        pass


@given(
    values=st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=20),
    place=st.integers(0, 19),
    bit=st.integers(0, 31),
)
def test_one_changed_bit_changes_it(values: list[float], place: int, bit: int) -> None:
    tensor = torch.tensor(values)
    changed = tensor.clone().view(torch.int32)
    changed[place % len(values)] ^= 1 << bit if bit < 31 else -(1 << 31)
    assert checksum(changed.view(torch.float32)) != checksum(tensor)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_it_is_of_values_in_whatever_precision_holds_them(dtype: object) -> None:
    tensor = torch.randn(100).to(dtype)
    assert checksum(tensor) == checksum(tensor.to(torch.float32))


def test_what_is_published_may_be_served_in_half_precision() -> None:
    tensor = torch.randn(50)
    (found,) = published({"one": tensor}).values()
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert checksum(tensor.to(dtype)) in found
    assert published({"one": tensor.to(torch.bfloat16)})["one"] == (found[1],)


def test_a_server_tells_what_it_loaded_whatever_it_joins_and_transposes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loaded = LoadedWeights()
    for seed in (0, 1):
        load(loaded, weights(seed))
        expected = {name: checksum(tensor) for name, tensor in weights(seed).items()}
        assert loaded.report(joined(weights(seed)).items()) == expected
    assert not caplog.messages


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_server_may_keep_it_in_half_precision(dtype: object) -> None:
    loaded = LoadedWeights()
    for seed in (0, 1):
        load(loaded, weights(seed), dtype)
        here = {name: tensor.to(dtype) for name, tensor in joined(weights(seed)).items()}
        assert OTHERWISE not in loaded.report(here.items()).values()


def test_what_was_loaded_and_is_not_in_memory_is_told() -> None:
    loaded = LoadedWeights()
    load(loaded, weights(0))
    loaded.report(joined(weights(0)).items())
    load(loaded, weights(1))
    here = joined(weights(1)) | {
        k: v for k, v in joined(weights(0)).items() if "layers.1" in k and "o_proj" in k
    }
    found = loaded.report(here.items())
    assert {name for name, one in found.items() if one == OTHERWISE} == {
        name for name in weights(1) if "layers.1" in name
    }


def test_what_a_server_packs_is_not_held_against_it_and_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loaded = LoadedWeights()
    for seed in (0, 1):
        load(loaded, weights(seed))
        here = {k: v for k, v in joined(weights(seed)).items() if "layers.0" in k}
        assert OTHERWISE not in loaded.report(here.items()).values()
    (told,) = caplog.messages
    assert told.startswith("1 of 2 layers are in memory as they were loaded")
