"""Updates of AdamW that are no larger than gradients have been of late."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from ajet_core.protocol import AlgorithmConfig
from ajet_torch.optimiser import MasterAdamW
from ajet_torch.update_clipping import UpdateClipping

BETAS = (0.8, 0.9)
RATE, EPS = 1e-2, 1e-8


def parameters() -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    shapes = {"matrix": (5, 3), "bias": (5,), "unused": (2, 2)}
    return {
        name: nn.Parameter(torch.randn(shape, generator=generator))
        for name, shape in shapes.items()
    }


def gradients(steps: int) -> list[dict[str, torch.Tensor]]:
    """Small ones, and every fourth one is 50 times as large."""
    generator = torch.Generator().manual_seed(2)
    return [
        {
            name: (50.0 if step % 4 == 3 else 1.0) * torch.randn(shape, generator=generator)
            for name, shape in (("matrix", (5, 3)), ("bias", (5,)))
        }
        for step in range(steps)
    ]


def optimiser(
    found: dict[str, nn.Parameter], most: float, weight_decay: float = 0.0
) -> MasterAdamW:
    algorithm = AlgorithmConfig(
        learning_rate=RATE,
        adam_betas=BETAS,
        weight_decay=weight_decay,
        max_grad_norm=0,
        max_update_rms=most,
    )
    return MasterAdamW(found, algorithm, float32=True)


def step(found: MasterAdamW, given: dict[str, torch.Tensor]) -> None:
    for name, gradient in given.items():
        found.parameters[name].grad = gradient.clone()
    found.collect_gradients()
    found.step(RATE)
    found.zero_grad()


@pytest.mark.parametrize("most", [0.5, 1.0, 1.5])
def test_updates_are_those_of_the_formula(most: float) -> None:
    trained = parameters()
    clipped = optimiser(trained, most)
    weights = {name: p.detach().double() for name, p in parameters().items()}
    first = {name: torch.zeros_like(weights[name]) for name in ("matrix", "bias")}
    second = {name: torch.zeros_like(weights[name]) for name in ("matrix", "bias")}
    clips = 0
    for t, given in enumerate(gradients(12), start=1):
        step(clipped, given)
        squares = []
        for name, gradient in given.items():
            g = gradient.double()
            first[name] = BETAS[0] * first[name] + (1 - BETAS[0]) * g
            second[name] = BETAS[1] * second[name] + (1 - BETAS[1]) * g * g
            squares.append((g * g / (second[name] / (1 - BETAS[1] ** t))).flatten())
        rms = math.sqrt(float(torch.cat(squares).mean()))
        clips += rms > most
        for name in given:
            m = first[name] / (1 - BETAS[0] ** t)
            v = second[name] / (1 - BETAS[1] ** t)
            weights[name] -= RATE / max(1.0, rms / most) * m / (v.sqrt() + EPS)
        for name, parameter in trained.items():
            assert torch.allclose(parameter.detach().double(), weights[name], atol=1e-6), (t, name)
    assert clips > 0


def test_zero_leaves_updates_as_they_are() -> None:
    trained, plain = parameters(), parameters()
    ours = optimiser(trained, 0.0)
    theirs = torch.optim.AdamW(plain.values(), lr=RATE, betas=BETAS, weight_decay=0.0)
    for given in gradients(8):
        step(ours, given)
        for name, gradient in given.items():
            plain[name].grad = gradient.clone()
        theirs.step()
    for name, parameter in trained.items():
        assert torch.equal(parameter, plain[name]), name


def test_the_first_large_gradient_moves_no_weight_far() -> None:
    def moved(most: float) -> float:
        trained = {"matrix": nn.Parameter(torch.zeros(100))}
        found = optimiser(trained, most)
        for _ in range(60):
            step(found, {"matrix": 1e-3 * torch.randn(100)})
        before = trained["matrix"].detach().clone()
        step(found, {"matrix": torch.randn(100)})
        return float((trained["matrix"].detach() - before).square().mean().sqrt()) / RATE

    torch.manual_seed(0)
    # (1 - 0.8) / sqrt(1 - 0.9) of a learning rate is what Adam makes of it.
    assert moved(0.0) > 0.5
    assert moved(1.0) < 0.3


def test_learning_rates_stay_as_they_are_and_gradients_that_are_nothing_do_no_harm() -> None:
    weights = nn.Parameter(torch.ones(4))
    adamw = torch.optim.AdamW([weights], lr=RATE)
    UpdateClipping(adamw, 1.0)
    # An optimiser without state, as before its first update; and one without gradients.
    adamw.step()
    for gradient in (torch.zeros(4), torch.full((4,), 1e-3), torch.full((4,), 1e3)):
        weights.grad = gradient
        adamw.step()
        assert adamw.param_groups[0]["lr"] == RATE
        assert weights.isfinite().all()
