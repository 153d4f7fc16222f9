"""`ajet plugin check` finds what a project lacks for being published."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

import ajet_testing.suites
from ajet_cli.plugin_projects.publishing import SUITES, Lack
from tests.cli.plugin_projects import ajet, build_wheel, new_project

pytestmark = pytest.mark.processes
PYPROJECT, README, HOOKS = "pyproject.toml", "README.md", "src/ajet_mine/hooks.py"


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that lacks nothing, with its wheel."""
    directory = tmp_path_factory.mktemp("complete")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        patch.setenv("HOME", str(directory))
        project = new_project("reader", "mine")
    build_wheel(project)
    return project


@pytest.fixture
def project(complete: Path, tmp_path: Path) -> Path:
    return shutil.copytree(complete, tmp_path / "project")


def check(project: Path) -> list[Lack]:
    """The result of the command, whose exit status follows from it."""
    done = ajet("plugin", "check", project, "--json")
    lacks = [Lack(**lack) for lack in json.loads(done.output)]
    assert done.exit_code == any(lack.weight == "error" for lack in lacks)
    return lacks


def replacing(file: str, old: str, new: str) -> Callable[[Path], None]:
    """A change of a file of the project."""

    def change(project: Path) -> None:
        path = project / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    return change


def removing(pattern: str) -> Callable[[Path], None]:
    """The removal of files."""

    def change(project: Path) -> None:
        paths = list(project.glob(pattern))
        assert paths
        for path in paths:
            path.unlink()

    return change


def adding(file: str, text: str) -> Callable[[Path], None]:
    """A new file, or more lines of one."""

    def change(project: Path) -> None:
        with (project / file).open("a") as lines:
            lines.write(text)

    return change


def without_line(start: str) -> Callable[[Path], None]:
    """The removal of a line of ``pyproject.toml``."""

    def change(project: Path) -> None:
        lines = (project / PYPROJECT).read_text().splitlines(keepends=True)
        kept = [line for line in lines if not line.startswith(start)]
        assert len(kept) == len(lines) - 1
        (project / PYPROJECT).write_text("".join(kept))

    return change


def impure(project: Path) -> None:
    (wheel,) = (project / "dist").glob("*.whl")
    rewrite(wheel, lambda name, data: data.replace(b"Purelib: true", b"Purelib: false"))


def without_package_data(project: Path) -> None:
    (wheel,) = (project / "dist").glob("*.whl")
    rewrite(wheel, lambda name, data: None if name.endswith("py.typed") else data)


def rewrite(wheel: Path, change: Callable[[str, bytes], bytes | None]) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in files.items():
            if (changed := change(name, data)) is not None:
                archive.writestr(name, changed)


ERRORS: dict[str, tuple[Callable[[Path], None], str]] = {
    "version": (replacing(PYPROJECT, '"0.1.0"', '"0.0.0"'), "the version is 0.0.0"),
    "no version": (replacing(PYPROJECT, '"0.1.0"', '"one"'), "the version 'one' is not valid"),
    "description": (without_line("description"), "`project.description` is missing"),
    "readme": (without_line("readme"), "`project.readme` is missing"),
    "python": (without_line("requires-python"), "`project.requires-python` is missing"),
    "license": (without_line("license ="), "`project.license` is missing"),
    "no agentjet": (replacing(PYPROJECT, '"agentjet>=0.1,<1"', ""), "agentjet is not a dependency"),
    "no lower bound": (replacing(PYPROJECT, "agentjet>=0.1,<1", "agentjet<1"), "no lower bound"),
    "old agentjet": (replacing(PYPROJECT, "agentjet>=0.1,<1", "agentjet>=7"), "the bounds"),
    "bad bound": (replacing(PYPROJECT, "agentjet>=0.1,<1", "agentjet>>1"), "is not valid"),
    "license file": (removing("LICENSE"), "there is no license file: add LICENSE"),
    "changelog": (removing("CHANGELOG.md"), "there is no changelog: add CHANGELOG"),
    "readme file": (removing(README), "README.md is missing or empty"),
    "no hook API": (replacing(PYPROJECT, '"1.2" = "ajet_mine.hooks"', ""), "no hook API version"),
    "later hook API": (replacing(PYPROJECT, '"1.2" =', '"1.99" ='), "it needs hook API 1.99"),
    "early hook API": (
        replacing(PYPROJECT, '"1.2" =', '"1.0" ='),
        "ajet_register_readers is new in hook API 1.2, but only 1.0 is declared",
    ),
    "not importable": (adding(HOOKS, "\nimport no_such_module\n"), "No module named 'no_such_modu"),
    "target": (removing("src/ajet_mine/reader.py"), "cannot import reader 'mine'"),
    "settings": (
        adding("src/ajet_mine/settings.py", "    limit: int = 3\n"),
        "the setting MineReaderSettings.limit has no description",
    ),
    "heavy": (adding(HOOKS, "\nimport numpy\n"), "the hooks module imports numpy"),
    "usage": (
        replacing(README, "mine", "yours"),
        "the README does not show how to use reader 'mine': `[readers.mine]` in ajet.toml",
    ),
    "unknown setting": (
        replacing(README, 'table = "tasks"', 'tabel = "tasks"'),
        "the README shows what is refused: reader 'mine': ",
    ),
    "wrong setting": (replacing(README, 'table = "tasks"', "table = 3"), "table"),
    "broken block": (
        replacing(README, 'table = "tasks"', "table = "),
        "block of toml is not valid",
    ),
    "suite": (
        replacing("tests/test_reader.py", "(ReaderSuite)", ""),
        "no test subclasses ReaderSuite, the suite for kind reader",
    ),
    "tests": (removing("tests/test_*.py"), "there are no tests"),
    "package data": (
        without_package_data,
        "ajet_mine-0.1.0-py3-none-any.whl lacks ajet_mine/py.ty",
    ),
    "new package data": (adding("src/ajet_mine/data.txt", "1"), "whl lacks ajet_mine/data.txt"),
    "old entry points": (
        replacing(PYPROJECT, "\nmine = ", "\nours = "),
        "the entry points agentjet are not those of pyproject.toml",
    ),
}
ADVICE: dict[str, tuple[Callable[[Path], None], str]] = {
    "name": (replacing(PYPROJECT, '"ajet-mine"', '"mine"'), "'mine' does not begin with `ajet-`"),
    "classifier": (replacing(PYPROJECT, '"Typing :: Typed",', ""), "such as 'Typing :: Typed'"),
    "no upper bound": (replacing(PYPROJECT, ">=0.1,<1", ">=0.1"), "no upper bound"),
    "entry": (replacing("CHANGELOG.md", "0.1.0", "0.2.0"), "CHANGELOG.md has no entry for 0.1.0"),
    "typed": (removing("src/ajet_mine/py.typed"), "ajet_mine/py.typed is missing"),
    "light import": (adding(HOOKS, "\nimport yaml\n"), "the hooks module imports yaml"),
    "target": (adding(HOOKS, "\nimport ajet_mine.reader\n"), "imports ajet_mine.reader"),
    "wheel": (removing("dist/*.whl"), "no wheel of 0.1.0"),
    "impure": (impure, "is not pure"),
}


def test_a_new_project_lacks_nothing(project: Path) -> None:
    assert check(project) == []
    done = ajet("plugin", "check", project)
    assert (done.exit_code, done.output) == (0, "nothing that is required is missing\n")


@pytest.mark.parametrize("case", ERRORS)
def test_what_users_would_notice_is_an_error(case: str, project: Path) -> None:
    change, text = ERRORS[case]
    change(project)
    errors = [lack.text for lack in check(project) if lack.weight == "error"]
    assert any(text in error for error in errors), errors
    # Of the removed README, the usage is missing too.
    assert len(errors) <= 2


@pytest.mark.parametrize("case", ADVICE)
def test_the_rest_is_advice(case: str, project: Path) -> None:
    change, text = ADVICE[case]
    change(project)
    lacks = check(project)
    assert {lack.weight for lack in lacks} == {"advice"}
    assert any(text in lack.text for lack in lacks), lacks


def test_texts_of_the_template_are_noticed_once_its_component_is_replaced(project: Path) -> None:
    path = project / "src/ajet_mine/reader.py"
    head = path.read_text().partition("    def ")[0]
    path.write_text(head + "    def read(self, source):\n        return iter(())\n")
    removing("dist/*.whl")(project)
    left = [lack for lack in check(project) if "left from the template" in lack.text]
    assert {lack.weight for lack in left} == {"advice"}
    assert {lack.text.partition(":")[0] for lack in left} == {
        *("README", "__init__.py", "hooks.py", "pyproject.toml")
    }
    replacing(HOOKS, "tables of SQLite", "rows of mine")(project)
    texts = [lack.text for lack in check(project) if "left from the template" in lack.text]
    assert not any("hooks.py" in text for text in texts)


def test_errors_come_first_and_are_told_apart(project: Path) -> None:
    for change, _ in (ADVICE["wheel"], ERRORS["license file"]):
        change(project)
    done = ajet("plugin", "check", project)
    assert done.exit_code == 1
    assert [line.partition(":")[0] for line in done.output.splitlines()] == ["error", "advice"]


def test_a_project_without_a_plugin_is_shown_how_to_add_one(project: Path) -> None:
    replacing(PYPROJECT, '\nmine = "ajet_mine.hooks"', "")(project)
    (error,) = [
        lack.text for lack in check(project) if lack.weight == "error" and "add" in lack.text
    ]
    assert 'add [project.entry-points.agentjet] with mine = "ajet_mine.hooks"' in error


def test_a_version_can_come_from_the_wheel(project: Path) -> None:
    replacing(PYPROJECT, 'version = "0.1.0"', 'dynamic = ["version"]')(project)
    assert check(project) == []
    removing("dist/*.whl")(project)
    assert any("the version is dynamic" in lack.text for lack in check(project))


def test_what_is_installed_does_not_hide_the_project(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (wheel,) = (project / "dist").glob("*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    monkeypatch.setenv("PYTHONPATH", str(site))
    ERRORS["settings"][0](project)
    assert any("MineReaderSettings.limit" in lack.text for lack in check(project))


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "cannot read"), ("not TOML", "cannot read"), ("[tool]\n", "lacks 'project'")],
)
def test_a_directory_that_is_not_a_project_is_refused(
    text: str | None, message: str, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / PYPROJECT).write_text(text)
    done = ajet("plugin", "check", tmp_path)
    assert done.exit_code == 2
    assert message in done.output
    assert os.fspath(tmp_path / PYPROJECT) in done.output.replace("\n", "")


def test_suites_are_those_of_ajet_testing() -> None:
    folder = Path(ajet_testing.suites.__path__[0])
    modules = [
        import_module(f"ajet_testing.suites.{path.stem}") for path in folder.glob("*_suite.py")
    ]
    classes = {
        name
        for module in modules
        for name, cls in inspect.getmembers(module, inspect.isclass)
        if name.endswith("Suite") and cls.__module__ == module.__name__
    }
    # Part of the suite for engines; and observers are no components.
    assert {name for names in SUITES.values() for name in names} == classes - {
        "ShapingSuite",
        "ObserverSuite",
    }
