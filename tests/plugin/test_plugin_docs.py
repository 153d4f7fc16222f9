"""The documentation of hooks is complete and exact."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
import tomllib
from pathlib import Path

import pytest

import ajet_core.plugin
from ajet_core.plugin import spec
from ajet_core.plugin.compat import HOOK_API, parse_hook_api
from ajet_core.plugin.kinds import KINDS
from ajet_core.plugin.loading import HOOK_NAMES, OBSERVERS
from ajet_core.protocol import RunConfig
from ajet_installation.settings import Settings

ROOT = Path(__file__).parents[2]
PAGES = {
    path.stem: path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "docs" / "plugins").glob("*.md"))
}
DOCS = "\n".join(PAGES.values())
FACTS = ["Runs", "Lifetime", "Errors", "Hot", "Switched on by", "Tested by"]


def signature(name: str) -> str:
    return f"{name}{inspect.signature(getattr(spec, name))}".replace("'", "")


@pytest.mark.parametrize("name", HOOK_NAMES)
def test_every_hook_has_a_summary_and_one_paragraph_which_the_page_repeats(name: str) -> None:
    text = inspect.getdoc(getattr(spec, name)) or ""
    summary, paragraph, since, *params = text.split("\n\n")
    assert summary.endswith(".")
    assert since.startswith(".. versionadded::")
    assert [block.startswith(":param") for block in params] == [True] * (name in OBSERVERS)
    section = DOCS.partition(f"\n## `{name}(")[2].partition("\n## `")[0]
    assert summary in section
    assert " ".join(paragraph.split()) in " ".join(section.split())


@pytest.mark.parametrize("name", HOOK_NAMES)
def test_every_hook_is_documented_with_its_signature(name: str) -> None:
    assert f"\n## `{signature(name)}`\n" in DOCS


@pytest.mark.parametrize("name", HOOK_NAMES)
def test_every_hook_says_since_when_it_exists(name: str) -> None:
    text = inspect.getdoc(getattr(spec, name)) or ""
    (since,) = re.findall(r"^\.\. versionadded:: (\d+\.\d+)$", text, re.MULTILINE)
    version = parse_hook_api(since)
    assert version is not None
    assert version <= HOOK_API
    section = DOCS.partition(f"\n## `{name}(")[2].partition("\n## `")[0]
    assert f"New in hook API {since}." in section


def test_no_hook_is_documented_that_does_not_exist() -> None:
    assert set(re.findall(r"^## `(ajet_\w+)", DOCS, re.MULTILINE)) == set(HOOK_NAMES)


def test_each_kind_has_a_page_with_the_same_facts_which_the_index_names() -> None:
    index = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    kinds = [*(kind.name for kind in KINDS), "observers"]
    assert re.findall(r"^\| \[(\w+)\]\(plugins/\1\.md\) \|", index, re.MULTILINE) == kinds
    assert sorted(PAGES) == sorted(kinds)
    for name, page in PAGES.items():
        assert re.findall(r"^- \*\*([\w ]+)\*\*", page, re.MULTILINE) == FACTS, name


@pytest.mark.parametrize("name", sorted(PAGES))
def test_each_page_shows_how_the_kind_is_switched_on(name: str) -> None:
    example = re.search(r"^  ```(json|toml)\n(.*?)^  ```", PAGES[name], re.DOTALL | re.MULTILINE)
    assert example is not None
    text = textwrap.dedent(example[2])
    if example[1] == "json":
        RunConfig.model_validate({"model": {"path": "/m"}, **json.loads(f"{{{text}}}")})
    else:
        Settings.model_validate(tomllib.loads(text))


@pytest.mark.parametrize("page", [*sorted(PAGES), "../plugins"])
def test_links_of_the_pages_lead_somewhere(page: str) -> None:
    path = (ROOT / "docs" / "plugins" / f"{page}.md").resolve()
    text = path.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", text):
        linked = (path.parent / target).resolve() if target else path
        assert linked.is_file(), f"{page}: {target}"
        if anchor:
            titles = re.findall(r"^#+ (.+)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in titles}
            assert anchor in slugs, f"{page}: {target}#{anchor}"


def test_every_registering_hook_belongs_to_a_kind() -> None:
    assert {kind.hook for kind in KINDS} | set(OBSERVERS) == set(HOOK_NAMES)


def test_the_exports_are_sorted_and_exist() -> None:
    names = ajet_core.plugin.__all__
    constants = [name for name in names if name.isupper()]
    classes = [name for name in names if name[0].isupper() and not name.isupper()]
    functions = [name for name in names if name[0].islower()]
    assert names == [*sorted(constants), *sorted(classes), *sorted(functions)]
    assert all(hasattr(ajet_core.plugin, name) for name in names)


def test_the_example_of_the_guide_is_a_plugin_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = inspect.getdoc(ajet_core.plugin) or ""
    blocks = re.findall(r"^``([\w./]+)``[^\n]*::\n\n((?:    .*\n|\n)+)", guide, re.MULTILINE)
    files = {name: inspect.cleandoc(text) for name, text in blocks}
    assert set(files) == {"pyproject.toml", "ajet_echo/hooks.py", "ajet_echo/settings.py"}
    project = tomllib.loads(files.pop("pyproject.toml"))["project"]
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    info = tmp_path / "ajet_echo-1.0.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    groups = project["entry-points"]
    (info / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in points.items())
            for group, points in groups.items()
        )
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    manager = ajet_core.plugin.PluginManager()
    settings = manager.validate_settings(manager.engine("echo"), {"repeat": 2})
    assert settings.model_dump() == {"repeat": 2}
