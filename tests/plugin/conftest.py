"""Real throw-away distributions: metadata and modules in a directory on ``sys.path``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.sites import Site


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """An empty directory of distributions, first on the path."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made = Site(tmp_path)
    yield made
    for module in made.modules:
        sys.modules.pop(module, None)


@pytest.fixture
def imported(site: Site) -> Callable[[], set[str]]:
    """Which of the site's modules have been imported."""
    return lambda: {module for module in site.modules if module in sys.modules}
