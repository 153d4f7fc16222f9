"""Which trainers' pairs are tested, and for how long."""

from __future__ import annotations

import pytest

TRAINERS = ("torch", "trl", "verl")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--trainer", action="append", choices=TRAINERS, help="all, if none is named")
    parser.addoption("--steps", type=int, help="of each pair")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "trainer" in metafunc.fixturenames:
        metafunc.parametrize("trainer", metafunc.config.getoption("--trainer") or TRAINERS)
