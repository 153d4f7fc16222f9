"""Logprobs in chunks: verl's own numbers, in fewer operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from ajet_backend_verl import logprobs
from torch.utils._python_dispatch import TorchDispatchMode
from verl.utils import torch_functional

VOCABULARY = 64
ONE_BY_ONE = torch_functional.logprobs_from_logits_v2


class Operations(TorchDispatchMode):
    """Counts the operations that run in its context."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self,
        operation: object,
        _: Sequence[type],
        arguments: Sequence[object] = (),
        named: Mapping[str, object] | None = None,
    ) -> object:
        self.count += 1
        return operation(*arguments, **named or {})  # type: ignore[operator]


@pytest.fixture
def chunks_in_verl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make verl use chunks for the length of a test."""
    monkeypatch.setattr(torch_functional, "logprobs_from_logits_v2", ONE_BY_ONE)
    logprobs.use_chunks()


def drawn(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random logits of tokens in this shape, and their labels."""
    dice = torch.Generator().manual_seed(7)
    logits = 4 * torch.randn(*shape, VOCABULARY, generator=dice)
    return logits.to(dtype), torch.randint(VOCABULARY, shape, generator=dice)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(7,), (6,), (1,), (2, 5)], ids=str)
def test_values_and_gradients_are_those_of_verl(shape, dtype, monkeypatch):
    monkeypatch.setattr(logprobs, "CHUNK_LOGITS", 3 * VOCABULARY)
    logits, labels = drawn(shape, dtype)
    found = {}
    for name, compute in (("chunks", logprobs.logprobs_in_chunks), ("one by one", ONE_BY_ONE)):
        leaf = logits.clone().requires_grad_()
        values = compute(leaf, labels)
        (values.float() * torch.arange(1.0, labels.numel() + 1).view(shape)).sum().backward()
        assert leaf.grad is not None
        found[name] = values.detach(), leaf.grad
    for ours, theirs in zip(found["chunks"], found["one by one"], strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs)


def test_a_vocabulary_larger_than_a_chunk(monkeypatch):
    monkeypatch.setattr(logprobs, "CHUNK_LOGITS", 1)
    logits, labels = drawn((3,), torch.float32)
    torch.testing.assert_close(
        logprobs.logprobs_in_chunks(logits, labels), ONE_BY_ONE(logits, labels)
    )


@pytest.mark.usefixtures("chunks_in_verl")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_verl_takes_no_more_operations_for_more_tokens(dtype):
    counts = []
    for tokens in (4, 400):
        with Operations() as operations:
            torch_functional.logprobs_from_logits(*drawn((tokens,), dtype))
        counts.append(operations.count)
    assert counts[0] == counts[1]
