"""Which pairs are tested, and for how long."""

from __future__ import annotations

import itertools

import pytest

TRAINERS = ("torch", "trl", "verl")
ENGINES = ("torch", "vllm", "sglang")
# Each trainer and each engine of other environments once; the other pairs are tested nightly. Torch
# with torch trains in many tests of the development environment.
EACH_ONCE = {("trl", "vllm"), ("verl", "sglang")}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--trainer", action="append", choices=TRAINERS, help="all, if none is named")
    parser.addoption("--steps", type=int, help="of each pair")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "trainer" in metafunc.fixturenames:
        trainers = metafunc.config.getoption("--trainer") or TRAINERS
        pairs = [
            pytest.param(*pair, marks=() if pair in EACH_ONCE else pytest.mark.nightly)
            for pair in itertools.product(trainers, ENGINES)
        ]
        metafunc.parametrize(("trainer", "engine"), pairs)
