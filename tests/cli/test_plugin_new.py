"""`ajet plugin new` and `ajet plugin update`: projects that work, and keep up to date."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from ajet_cli.commands.projects.plugin import OTHER_WORDS, PACKAGES
from ajet_cli.plugin_projects import rendering
from ajet_cli.plugin_projects.publishing import SUITES
from ajet_cli.plugin_projects.rendering import (
    ANSWERS,
    KINDS,
    SOURCE,
    TEMPLATE,
    find_releases,
    read_archive,
    read_template,
    write_archive,
)
from ajet_core.errors import ConfigError
from ajet_core.plugin import spec
from ajet_core.plugin.kinds import BY_NAME
from tests.cli.plugin_projects import (
    AUTHOR,
    ajet,
    build_wheel,
    commit,
    git,
    install,
    new_project,
    run,
)

ROOT = Path(__file__).resolve().parents[2]
OLD = "0.0.1"
# The suites of the others are nightly tests: that for agents takes half a minute.
SAMPLED = {"advantage", "engine", "store"}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory without the caches and the git settings of the user."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in [name for name in os.environ if name.startswith(("GIT_", "XDG_"))]:
        monkeypatch.delenv(name)
    return home


@pytest.mark.processes
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "kind",
    [kind if kind in SAMPLED else pytest.param(kind, marks=pytest.mark.nightly) for kind in KINDS],
)
def test_a_new_plugin_works_as_it_is(kind: str, tmp_path: Path) -> None:
    project = new_project(kind, "our-own")
    site = tmp_path / "site"
    install(build_wheel(project), site)

    tests = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    run(project, *tests, "--junitxml", tmp_path / "tests.xml", PYTHONPATH=str(site))
    cases = [
        (str(case.get("classname")), str(case.get("name")))
        for case in ET.parse(tmp_path / "tests.xml").iter("testcase")
        if case.find("skipped") is None
    ]
    assert ("tests.test_plugin", "test_agentjet_finds_the_plugin") in cases
    if kind in SUITES:
        assert sum(name.startswith(f"tests.test_{kind}.Test") for name, _ in cases) >= 3

    command = (sys.executable, "-m", "ajet_cli.main", "plugins", "--json")
    rows = json.loads(run(tmp_path, *command, PYTHONPATH=str(site)))
    (row,) = [row for row in rows if row["name"] == "our-own"]
    assert row["problem"] == ""
    assert row["components"] == ([f"{kind}:our-own"] if kind in BY_NAME else [])

    since = {re.search(r"versionadded:: (.+)", getattr(spec, h).__doc__)[1] for h in row["hooks"]}
    document = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    assert document["entry-points"]["agentjet.hook_api"].keys() == since
    assert document["authors"] == [{"name": "Ann O'Hara", "email": "ann@example.org"}]

    checked = ajet("plugin", "check", project, "--json")
    assert (checked.exit_code, json.loads(checked.output)) == (0, [])


@pytest.mark.processes
def test_options_and_answers_are_used(tmp_path: Path) -> None:
    Path("answers.toml").write_text('description = "Stores it all"\nlicense = "MIT"\n')
    done = ajet(
        *("plugin", "new", "store", "Ajet_Big.Store", "--directory", "here", "--author", "Zoë"),
        *("--answers", "answers.toml", "--license", "BSD-3-Clause", "--python", "3.12"),
    )
    assert done.exit_code == 0, done.output
    project = tomllib.loads(Path("here/pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (project["name"], project["description"]) == ("ajet-big-store", "Stores it all")
    assert (project["license"], project["requires-python"]) == ("BSD-3-Clause", ">=3.12")
    assert project["authors"] == [{"name": "Zoë"}]
    assert "Zoë\n\nBSD 3-Clause" in Path("here/LICENSE").read_text(encoding="utf-8")
    workflow = Path("here/.github/workflows/tests.yml").read_text(encoding="utf-8")
    assert 'python: ["3.12", "3.13"]' in workflow
    assert "python-version: ${{ matrix.python }}" in workflow
    assert "class BigStore(" in Path("here/src/ajet_big_store/store.py").read_text()


@pytest.mark.processes
def test_a_distribution_can_have_a_name_of_its_own(tmp_path: Path) -> None:
    arguments = ("--distribution", "acme-rows", "--description", "It writes rows.", *AUTHOR)
    done = ajet("plugin", "new", "logger", "rows", *arguments)
    assert done.exit_code == 0, done.output
    assert "acme-rows is ready" in done.output
    project = tomllib.loads(Path("acme-rows/pyproject.toml").read_text())["project"]
    assert (project["name"], project["description"]) == ("acme-rows", "It writes rows.")
    assert project["entry-points"]["agentjet"] == {"rows": "acme_rows.hooks"}
    assert Path("acme-rows/src/acme_rows/__init__.py").read_text() == '"""It writes rows."""\n'
    assert "\nIt writes rows.\n" in Path("acme-rows/README.md").read_text()


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_the_types_of_new_plugins_are_right(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    projects = [new_project(kind, f"our-{kind}") for kind in KINDS]
    for project in projects:
        settings = tomllib.loads((project / "pyproject.toml").read_text())["tool"]["mypy"]
        module = project.name.replace("-", "_")
        assert settings == {"strict": True, "packages": [module], "mypy_path": "src"}
    # One check of all takes as long as that of one, which reads agentjet.
    sources = [project / "src" / project.name.replace("-", "_") for project in projects]
    mypy = (sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path / "cache")
    run(tmp_path, *mypy, *sources)


@pytest.mark.processes
def test_what_no_option_gives_is_asked_in_a_terminal(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "ajet_cli.main", "plugin", "new", "store", "mine", "--ask"]
    asking = subprocess.Popen([*command, "--author", "Ann"], stdin=theirs, stdout=theirs)
    os.close(theirs)
    screen = ""
    for question, answer in (
        ("Name of the distribution", ""),
        ("One line that says", " of mine"),
        ("E-mail address", ""),
        ("License", "\x1b[B"),
        ("Oldest version", ""),
    ):
        while question not in screen:
            screen += os.read(ours, 1000).decode()
        os.write(ours, f"{answer}\r".encode())
    with contextlib.suppress(OSError):
        # Reading fails when the other end is closed.
        while os.read(ours, 1000):
            pass
    assert asking.wait() == 0
    os.close(ours)
    project = tomllib.loads(Path("ajet-mine/pyproject.toml").read_text())["project"]
    assert project["description"] == "A sample store of agentjet in one file of mine"
    assert project["authors"] == [{"name": "Ann"}]
    assert project["license"] == "MIT"
    assert "Author" not in screen


@pytest.mark.processes
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--license", "GPL"),
        ("--python", "3.10"),
        ("--description", 'with "marks"'),
        ("--author", "back\\slash"),
        ("--email", "no address"),
        ("--distribution", "Not_Normal"),
    ],
)
def test_an_answer_that_is_not_valid_is_refused(option: str, value: str) -> None:
    done = ajet("plugin", "new", "store", "mine", option, value)
    assert done.exit_code == 2
    assert option.removeprefix("--") in done.output
    assert not Path("ajet-mine").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("stroe", "mine"), "Did you mean 'store'?"),
        (("estimator", "mine"), "Did you mean 'advantage'?"),
        (("zzz", "mine"), "Kinds: engine, "),
        (("store", "1st"), "'1st' is not a valid name"),
        (("store", "a/b"), "'a/b' is not a valid name"),
        (("store", "sqlite"), "agentjet has the store 'sqlite' already"),
        (("command", "plugin"), "agentjet has the command 'plugin' already"),
        (("command", "serve"), "agentjet has the command 'serve' already"),
        (("store", "server"), "agentjet has a package of the name 'ajet-server'"),
        (("command", "demo"), "agentjet has a package of the name 'demo'"),
        (("store", "mine", "--distribution", "agentjet-mine"), "name 'agentjet-mine'"),
        (("store", "mine", "--distribution", "ajet-core"), "name 'ajet-core'"),
        (("store", "mine", "--ask"), "--ask needs a terminal"),
        (("store", "mine", "--answers", "none.toml"), "cannot read none.toml"),
    ],
)
def test_what_cannot_be_created_is_refused(arguments: tuple[str, ...], message: str) -> None:
    done = ajet("plugin", "new", *arguments)
    assert done.exit_code == 2
    assert message in done.output
    assert not list(Path().glob("ajet-*"))


@pytest.mark.processes
def test_the_component_keeps_underscores_and_the_distribution_has_hyphens() -> None:
    done = ajet("plugin", "new", "advantage", "ajet-Leave_two-out", *AUTHOR)
    assert done.exit_code == 0, done.output
    project = tomllib.loads(Path("ajet-leave-two-out/pyproject.toml").read_text())["project"]
    assert project["name"] == "ajet-leave-two-out"
    assert project["entry-points"]["agentjet"] == {"leave_two-out": "ajet_leave_two_out.hooks"}
    hooks = Path("ajet-leave-two-out/src/ajet_leave_two_out/hooks.py").read_text()
    assert 'name="leave_two-out"' in hooks
    assert "advantage:LeaveTwoOutEstimator" in hooks


def test_a_name_that_differs_from_an_embedded_one_by_hyphens_is_refused() -> None:
    done = ajet("plugin", "new", "advantage", "leave-one-out")
    assert done.exit_code == 2
    assert "agentjet has the advantage 'leave_one_out' already" in done.output


def test_an_unknown_answer_is_refused() -> None:
    Path("answers.toml").write_text('licence = "MIT"\n')
    done = ajet("plugin", "new", "store", "mine", "--answers", "answers.toml")
    assert done.exit_code == 2
    assert "'licence' is not a question" in done.output


def test_a_directory_that_exists_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "ajet-mine").mkdir()
    done = ajet("plugin", "new", "store", "mine")
    assert done.exit_code == 2
    assert "ajet-mine exists already" in done.output
    assert list((tmp_path / "ajet-mine").iterdir()) == []


def test_without_copier_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "copier", None)
    for arguments in (("new", "store", "mine"), ("update",)):
        done = ajet("plugin", *arguments)
        assert done.exit_code == 2
        assert "pip install 'agentjet[plugin-dev]>=0.1'" in done.output


def test_without_git_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    done = ajet("plugin", "new", "store", "mine")
    assert done.exit_code == 2
    assert "git is missing" in done.output


def test_every_kind_has_a_template() -> None:
    assert {path.name for path in (TEMPLATE / "kinds").iterdir()} == {*KINDS}
    assert {*OTHER_WORDS.values()} <= {*KINDS}


def test_names_of_own_packages_are_not_given_away() -> None:
    document = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = document["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {f"ajet_{name}" for name in PACKAGES} == {*packages} - {"agentjet"}


# --- Updates --------------------------------------------------------------------------------------

README = "project/README.md.jinja"
STORE = "kinds/store/component.jinja"


def older(directory: Path) -> Path:
    """Write an older template: another README and store, and a file that is there no more."""
    shutil.copytree(TEMPLATE, directory)
    readme = directory / README
    readme.write_text(readme.read_text().replace("## Use it", "## Usage"))
    store = directory / STORE
    text = store.read_text()
    assert "    async def get_run(self)" in text
    store.write_text(text.replace('"""Close the file, which unlocks it."""', '"""Close it."""'))
    (directory / "project" / "setup.cfg").write_text("[flake8]\n")
    return directory


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project that an older agentjet has made, in git; the new one has the older template."""
    template = older(tmp_path / "older")
    with monkeypatch.context() as before:
        before.setattr(rendering, "TEMPLATE", template)
        before.setattr(rendering, "__version__", OLD)
        project = new_project("store", "mine")
    assert f"_commit: {OLD}" in (project / ANSWERS).read_text()
    commit(project)
    monkeypatch.setattr(rendering, "PAST", tmp_path / "past")
    write_archive(tmp_path / "past" / f"{OLD}.zip", read_template(template))
    return project


def edit(file: Path, old: str, new: str) -> None:
    """Change a file of a project, as its author does."""
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def assert_updated(project: Path) -> None:
    readme, store = project / "README.md", project / "src" / "ajet_mine" / "store.py"
    assert "## Use it" in readme.read_text()
    assert "## Usage" not in readme.read_text()
    assert "Close the file, which unlocks it." in store.read_text()
    assert not (project / "setup.cfg").exists()
    assert f"_commit: {OLD}" not in (project / ANSWERS).read_text()
    # What the author did.
    assert "Keeps everything." in readme.read_text()
    assert "suits runs of any size" in store.read_text()
    assert (project / "src" / "ajet_mine" / "more.py").read_text() == "X = 1\n"


def work_on(project: Path) -> None:
    """Change and add files."""
    edit(project / "README.md", "A sample store of agentjet in one file.", "Keeps everything.")
    edit(
        project / "src" / "ajet_mine" / "store.py",
        "suits runs of some thousand calls",
        "suits runs of any size",
    )
    (project / "src" / "ajet_mine" / "more.py").write_text("X = 1\n")
    commit(project)


@pytest.mark.processes
def test_an_update_brings_changes_of_the_template_and_keeps_those_of_the_author(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_on(project)
    # Another machine, which never had the older agentjet.
    monkeypatch.setenv("HOME", str(tmp_path / "another-home"))
    done = ajet("plugin", "update", project)
    assert done.exit_code == 0, done.output
    assert_updated(project)
    commit(project)
    assert ajet("plugin", "update", project).exit_code == 0
    assert git(project, "status", "--porcelain") == ""


@pytest.mark.processes
def test_copier_itself_can_update_a_project(project: Path) -> None:
    work_on(project)
    # Any command that renders writes the template of this agentjet to where copier finds it.
    new_project("judge", "another")
    run(project, sys.executable, "-m", "copier", "update", "--defaults")
    assert_updated(project)


@pytest.mark.processes
def test_lines_that_both_changed_are_conflicts(project: Path) -> None:
    edit(project / "README.md", "## Usage", "## How to use it")
    commit(project)
    done = ajet("plugin", "update", project)
    assert done.exit_code == 1
    assert done.output == "conflicts, to be resolved and committed: README.md\n"
    text = (project / "README.md").read_text()
    assert re.search(r"<<<<<<< .*\n## How to use it\n.*\n## Use it\n>>>>>>> ", text, re.DOTALL)


@pytest.mark.processes
def test_what_cannot_be_updated_is_refused(project: Path) -> None:
    (project / "new.txt").touch()
    dirty = ajet("plugin", "update", project)
    assert dirty.exit_code == 2
    assert "uncommitted" in dirty.output or "dirty" in dirty.output
    edit(project / ANSWERS, f"_commit: {OLD}", "_commit: 99.0.0")
    later = ajet("plugin", "update", project)
    assert later.exit_code == 2
    assert "version 99.0.0 of the template" in later.output
    edit(project / ANSWERS, SOURCE, "gh:someone/template")
    other = ajet("plugin", "update", project)
    assert other.exit_code == 2
    assert "from the template gh:someone/template" in other.output
    (project / ANSWERS).unlink()
    without = ajet("plugin", "update", project)
    assert without.exit_code == 2
    assert "which `ajet plugin new` writes" in without.output


@pytest.mark.processes
def test_a_project_outside_git_is_refused(project: Path) -> None:
    shutil.rmtree(project / ".git")
    done = ajet("plugin", "update", project)
    assert done.exit_code == 2
    assert "git" in done.output


def test_an_archive_holds_the_template_and_is_always_the_same(tmp_path: Path) -> None:
    release = read_template(TEMPLATE)
    for name in ("a.zip", "b.zip"):
        write_archive(tmp_path / name, release)
    assert read_archive(tmp_path / "a.zip") == release
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_releases_are_in_order_and_the_current_one_is_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendering, "PAST", tmp_path)
    monkeypatch.setattr(rendering, "__version__", "0.11.0")
    for version in ("0.10.0", "0.9.1", "0.11.0"):
        write_archive(tmp_path / f"{version}.zip", {"copier.yml": version.encode()})
    assert list(find_releases()) == ["0.9.1", "0.10.0", "0.11.0"]
    assert find_releases()["0.11.0"] == read_template(TEMPLATE)


@pytest.mark.processes
def test_the_bundle_has_a_tag_for_each_version(tmp_path: Path) -> None:
    bundle = tmp_path / "cache" / "template.bundle"
    releases = {"0.1.0": {"a b/{{ x }}.txt": b"1\n"}, "0.2.0": {"c": b"no newline"}}
    for _ in range(2):
        rendering.write_bundle(bundle, releases)
    for version, (name, data) in {
        "0.1.0": ("a b/{{ x }}.txt", b"1\n"),
        "0.2.0": ("c", b"no newline"),
    }.items():
        clone = tmp_path / version
        git(tmp_path, "clone", "--quiet", "--branch", version, str(bundle), str(clone))
        assert (clone / name).read_bytes() == data
        assert (
            len([path for path in clone.rglob("*") if path.is_file() and ".git" not in path.parts])
            == 1
        )
    assert [path.name for path in bundle.parent.iterdir()] == [bundle.name]


@pytest.mark.processes
def test_a_failure_of_git_is_an_error_with_its_message(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"`git .*` failed: .*nowhere"):
        rendering._git(str(tmp_path / "nowhere"), "status")
