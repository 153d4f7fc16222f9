"""Which trainers' pairs are tested: all, or those that are named."""

from __future__ import annotations

import pytest

TRAINERS = ("torch", "trl", "verl")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--trainer", action="append", choices=TRAINERS)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "trainer" in metafunc.fixturenames:
        metafunc.parametrize("trainer", metafunc.config.getoption("--trainer") or TRAINERS)
