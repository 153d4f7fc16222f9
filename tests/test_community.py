"""The pages and forms for contributors: they are complete, and what they name exists."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from ajet_core import __version__
from tests.cli.test_option_help import WITHOUT_HELP

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[1]
FORMS = ROOT / ".github" / "ISSUE_TEMPLATE"
FIRST_ISSUES = (ROOT / "docs" / "good-first-issues.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def entries() -> dict[str, str]:
    """The good first issues, by title."""
    parts = re.split(r"^## (.*)\n", FIRST_ISSUES, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("entry", entries().values(), ids=list(entries()))
def test_a_good_first_issue_says_what_to_do_and_how_it_is_tested(entry: str) -> None:
    labels = re.findall(r"^- \*\*(.*?):\*\*", entry, re.MULTILINE)
    assert labels == ["File", "What to do", "Test"]


@pytest.mark.parametrize("entry", entries().values(), ids=list(entries()))
def test_the_files_of_a_good_first_issue_exist(entry: str) -> None:
    named = re.findall(r"`((?:[\w-]+/)+[\w.-]*)`", entry)
    assert named
    # The workflow is what is missing.
    assert [path for path in named if not (ROOT / path).exists() and "workflows" not in path] == []


def test_each_option_without_help_is_a_good_first_issue() -> None:
    for option in WITHOUT_HELP:
        command, _, flag = option.rpartition(" ")
        assert any(
            f"`ajet {command}`" in title and flag in text for title, text in entries().items()
        )


@pytest.mark.parametrize("form", sorted(FORMS.glob("*.yml")), ids=lambda path: path.stem)
def test_a_form_has_what_github_requires(form: Path) -> None:
    content = read(form)
    if form.stem == "config":
        assert content == {"blank_issues_enabled": False}
        return
    assert content.keys() == {"name", "description", "labels", "body"}
    ids = [field["id"] for field in content["body"]]
    assert len(set(ids)) == len(ids)
    for field in content["body"]:
        assert field["type"] == "textarea"
        assert field["attributes"]["label"]
    assert content["body"][0]["validations"] == {"required": True}


def test_support_names_the_forms() -> None:
    support = (ROOT / "SUPPORT.md").read_text(encoding="utf-8")
    names = {read(form)["name"] for form in FORMS.glob("*.yml") if form.stem != "config"}
    assert set(re.findall(r'the form "(\w+)"', support)) == names


def test_the_citation_has_the_keys_of_its_format_and_our_version() -> None:
    """Required and known keys of the Citation File Format 1.2.0."""
    citation = read(ROOT / "CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    known = {"abstract", "type", "version", "license", "keywords", "url", "date-released", "doi"}
    assert citation.keys() - {"cff-version", "message", "title", "authors"} <= known
    assert citation["cff-version"] == "1.2.0"
    assert citation["type"] == "software"
    assert all(author.keys() <= {"name", "website", "email"} for author in citation["authors"])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert citation["license"] == project["license"]
    assert citation["version"] == __version__


def test_the_commands_of_the_way_to_a_fix_exist() -> None:
    way = CONTRIBUTING.partition("## From a clone")[2].partition("## Check a change")[0]
    commands = [shlex.split(line) for line in re.findall(r"^ {7}(\S.*)$", way, re.MULTILINE)]
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {words[1] for words in commands if words[0] == "make"} <= set(targets)
    tests = [words[-1] for words in commands if "pytest" in words]
    assert tests
    assert all((ROOT / path).is_file() for path in tests)


@pytest.mark.parametrize(
    "page",
    ["CONTRIBUTING.md", "GOVERNANCE.md", "SUPPORT.md", "CODE_OF_CONDUCT.md", "SECURITY.md"],
)
def test_links_between_the_pages_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", (ROOT / page).read_text(encoding="utf-8"))
    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []


def test_contributing_and_the_readme_lead_to_all_of_it() -> None:
    for page in ("CODE_OF_CONDUCT.md", "GOVERNANCE.md", "SUPPORT.md", "docs/good-first-issues.md"):
        assert f"({page})" in CONTRIBUTING
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "(CONTRIBUTING.md)" in readme
    assert "(SUPPORT.md)" in readme
