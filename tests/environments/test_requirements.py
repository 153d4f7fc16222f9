"""Requirements of made-up distributions."""

from __future__ import annotations

from importlib.metadata import distributions
from pathlib import Path

import pytest

from ajet_installation.requirements import by_name, compatible, unmet

from .making import distribution


@pytest.fixture
def site(tmp_path: Path) -> Path:
    distribution(
        tmp_path,
        "top",
        requires=[
            "middle>=1",
            "old>=2.0",
            "gone[fast]<3",
            "extra-only; extra == 'more'",
            "elsewhere; python_version < '3'",
        ],
    )
    distribution(tmp_path, "middle", requires=["bottom!=1.0", "top"])
    distribution(tmp_path, "old", "1.5")
    distribution(tmp_path, "bottom")
    return tmp_path


def problems(site: Path, **options: object) -> list[str]:
    packages = by_name(distributions(path=[str(site)]))
    return [str(problem) for problem in unmet("top", packages, **options)]  # type: ignore[arg-type]


def test_what_is_missing_and_what_is_too_old_is_named_as_pip_takes_it(site: Path) -> None:
    assert problems(site) == [
        "top needs old>=2.0, 1.5 is installed",
        "top needs gone[fast]<3, is not installed",
    ]


def test_extras_are_looked_at_if_they_are_wanted(site: Path) -> None:
    assert "top needs extra-only, is not installed" in problems(site, extras=["more"])


def test_requirements_of_requirements_are_looked_at_in_depth_alone(site: Path) -> None:
    deep = "middle needs bottom!=1.0, 1.0 is installed"
    assert deep not in problems(site)
    assert deep in problems(site, deep=True)


def test_a_distribution_may_go_by_another_name(site: Path) -> None:
    distribution(site, "gone-cpu", "2.9")
    assert not any("gone" in line for line in problems(site, provides={"gone": "gone-cpu"}))
    distribution(site, "old-cpu", "1.9")
    assert "top needs old>=2.0, 1.9 is installed" in problems(site, provides={"old": "old-cpu"})


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("<5.11", ">=5.16.1,<5.20.0", False),
        ("<5.11", ">=5.0", True),
        ("<1.16", ">=1.16,<2", False),
        ("<=1.16", ">=1.16,<2", True),
        (">=2", "<3", True),
        (">2", "<2.1", True),
        ("<3", "<2", True),
        ("==1.4.*", ">=1.4.2", True),
        ("==1.4", "!=1.4", False),
        ("<2", ">=1.9.5", True),
        ("", ">=4", True),
    ],
)
def test_ranges_with_a_version_in_common_are_compatible(
    first: str, second: str, expected: bool
) -> None:
    assert compatible(first, second) is expected
    assert compatible(second, first) is expected
