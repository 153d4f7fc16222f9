"""The recipes that are shipped, and what a recipe may say."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ajet_core.errors import ConfigError
from ajet_installation.recipes import RECIPES, Recipe, read_recipe, recipe, recipes
from ajet_installation.sources import source_of

from .making import tiny_recipe

ROOT = Path(__file__).parents[2]
ALL = [pytest.param(known, id=name) for name, known in recipes().items()]


def test_there_is_a_recipe_for_every_backend() -> None:
    assert set(recipes()) == {"sglang", "torch", "trl", "verl", "vllm"}


@pytest.mark.parametrize("known", ALL)
def test_a_recipe_names_what_its_plugin_registers(known: Recipe) -> None:
    (hooks,) = (ROOT / known.source / "src").glob("*/hooks.py")
    text = hooks.read_text(encoding="utf-8")
    specs = re.findall(r"(?:Engine|Trainer)Spec\(\s*name=\"(\w+)\"", text)
    assert specs
    assert set(known.components) == set(specs)


@pytest.mark.parametrize("known", ALL)
def test_the_extra_of_its_name_installs_the_backend_in_the_versions_of_a_recipe(
    known: Recipe,
) -> None:
    extras = declared(ROOT)["optional-dependencies"]
    plugin = declared(ROOT / known.source)["dependencies"]
    ranges = {r.name: r.specifier for r in map(Requirement, [*extras[known.name], *plugin])}
    steps = {r.name: r.specifier for s in known.gpu.steps for r in map(Requirement, s.packages)}
    assert known.plugin in ranges
    assert steps[known.name] == ranges[known.name]


def declared(project: Path) -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    return table["project"]


def pins(known: Recipe) -> dict[str, Requirement]:
    assert known.cpu.constraints is not None
    lines = (known.directory / known.cpu.constraints).read_text(encoding="utf-8").splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(requirement.name): requirement for requirement in found}


@pytest.mark.parametrize("known", ALL)
def test_constraints_for_a_cpu_pin_one_version_each(known: Recipe) -> None:
    found = pins(known)
    assert "torch" in found
    for requirement in found.values():
        assert re.fullmatch(r"==[\w.!]+", str(requirement.specifier)), requirement


@pytest.mark.parametrize("known", ALL)
def test_the_pinned_versions_are_what_the_steps_ask_for(known: Recipe) -> None:
    found = pins(known)
    lines = [line for step in known.cpu.steps for line in step.packages]
    for name in (step.requirements for step in known.cpu.steps):
        if name is not None:
            text = (known.directory / name).read_text(encoding="utf-8")
            lines += [line for line in text.splitlines() if line and not line.startswith("#")]
    for asked in map(Requirement, lines):
        if asked.marker is not None and not asked.marker.evaluate():
            continue
        # pip leaves its own tools out of what it lists.
        if asked.name == "setuptools":
            continue
        version = str(found[canonicalize_name(asked.name)].specifier).removeprefix("==")
        assert asked.specifier.contains(version), asked


def test_no_recipe_names_a_place_to_install_from() -> None:
    for path in RECIPES.iterdir():
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"://|--index|--extra-index|--find-links", text), path


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"no recipe for an environment 'vlm'.*trl, verl, vllm"):
        recipe("vlm")


def test_a_mistake_in_a_recipe_is_named(tmp_path: Path) -> None:
    made = tiny_recipe(tmp_path)
    path = made.directory / "tiny.toml"
    path.write_text(path.read_text().replace('python = ">=3.11"', 'python = "3.11 or so"', 1))
    with pytest.raises(
        ConfigError, match=r"tiny\.toml.*(?s:.)*'3\.11 or so' is not a version range"
    ):
        read_recipe(path)


def test_the_digest_tells_whether_an_environment_would_be_another(tmp_path: Path) -> None:
    first = tiny_recipe(tmp_path / "a").digest("cpu")
    assert tiny_recipe(tmp_path / "b").digest("cpu") == first
    assert tiny_recipe(tmp_path / "c", constraints="tiny==2.0\n").digest("cpu") != first
    assert tiny_recipe(tmp_path / "d", gigabytes="3").digest("cpu") != first
    assert tiny_recipe(tmp_path / "e").digest("gpu") != first


def test_a_source_tree_gives_the_plugin(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "agentjet"\n')
    assert "left out" in source_of(recipe("trl"), tmp_path, None).note
    directory = tmp_path / "plugins" / "backend_trl"
    directory.mkdir(parents=True)
    (directory / "pyproject.toml").touch()
    found = source_of(recipe("trl"), tmp_path, None)
    assert found.distributions == ("agentjet-backend-trl",)
    assert found.plugin == ("-e", f"{directory}")
