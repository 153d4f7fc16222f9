"""Environments that are really made, from wheels made on the spot."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest

from ajet_core.errors import BackendEnvironmentError, ConfigError
from ajet_core.files import lock_file
from ajet_installation.create import Order, ProgressCallbacks, create_environment
from ajet_installation.environment import (
    RECORD,
    UNFINISHED,
    Environment,
    find_environments,
)
from ajet_installation.installers import InstallerName
from ajet_installation.pythons import Python
from ajet_installation.settings import Settings
from ajet_installation.sources import Source

from .making import HOOKS, plugin_entry_points, tiny_recipe, wheel

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
SILENT = ProgressCallbacks(step=lambda _: None, line=lambda _: None)


@pytest.fixture
def order(tmp_path: Path, wheels: Path, python: Python) -> Order:
    recipe = tiny_recipe(tmp_path / "recipes")
    directory = tmp_path / ".venvs" / "tiny"
    return Order(recipe, "cpu", directory, python, Source(), installer="uv")


@pytest.fixture(params=[pytest.param("pip", marks=pytest.mark.nightly), "uv"])
def either(order: Order, request: pytest.FixtureRequest) -> Order:
    """An order for each installer."""
    return replace(order, installer=request.param)


def output(environment: Environment, code: str) -> str:
    done = subprocess.run(
        [environment.python, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=environment.interpreter.environ({}),
    )
    return done.stdout.strip()


@pytest.mark.parametrize("installer", [pytest.param("pip", marks=pytest.mark.nightly), "uv"])
def test_an_environment_has_the_pinned_packages_and_is_found(
    order: Order, installer: InstallerName
) -> None:
    order, steps = replace(order, installer=installer), list[str]()
    made = create_environment(order, replace(SILENT, step=steps.append))
    assert output(made, "import tiny; print(tiny.MODE)") == "cpu"
    assert made.record.packages["tiny"] == "1.0"
    assert made.record.plugins == []
    assert find_environments(Settings())["tiny"] == made
    assert steps[1:3] == [f"{order.installer} installs", "step 1 of 1: tiny"]
    assert sorted(path.name for path in made.directory.parent.iterdir()) == [
        ".tiny.lock",
        "tiny",
        "tiny.log",
    ]


def test_what_is_there_is_left_as_it_is(order: Order) -> None:
    made = create_environment(order, SILENT)
    before = (made.directory / RECORD).stat()
    assert create_environment(order, SILENT) == made
    after = (made.directory / RECORD).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_without_pins_the_newest_version_is_taken(order: Order) -> None:
    with pytest.raises(BackendEnvironmentError, match="too new"):
        create_environment(replace(order, pinned=False), SILENT)


@pytest.mark.parametrize(
    ("package", "imports", "message"),
    [
        (
            "missing",
            '"tiny"',
            "(No matching distribution found for missing|missing was not found)",
        ),
        ("sick", '"sick"', "no such driver"),
    ],
)
def test_a_failure_leaves_a_log_and_no_environment(
    either: Order, tmp_path: Path, package: str, imports: str, message: str
) -> None:
    order = either
    recipe = tiny_recipe(tmp_path / "other", package=package, imports=imports)
    with pytest.raises(BackendEnvironmentError, match=message) as raised:
        create_environment(replace(order, recipe=recipe), SILENT)
    log = order.directory.with_name("tiny.log")
    assert str(log) in raised.value.message
    assert re.search(message, log.read_text())
    assert not order.directory.exists()
    assert find_environments(Settings()) == {}


def test_a_replacement_that_fails_leaves_the_environment_as_it_was(
    order: Order, tmp_path: Path
) -> None:
    made = create_environment(order, SILENT)
    recipe = tiny_recipe(tmp_path / "other", package="missing")
    with pytest.raises(BackendEnvironmentError):
        create_environment(replace(order, recipe=recipe, force=True), SILENT)
    assert Environment.read(order.directory) == made
    assert output(made, "import tiny; print(tiny.MODE)") == "cpu"


def test_a_replacement_takes_the_place(order: Order) -> None:
    made = create_environment(order, SILENT)
    (made.directory / "stray").touch()
    create_environment(replace(order, force=True), SILENT)
    assert not (made.directory / "stray").exists()
    assert not order.directory.with_name(".tiny.before").exists()


def test_two_at_once_are_told_of_each_other(order: Order) -> None:
    order.directory.parent.mkdir()
    descriptor = lock_file(order.directory.with_name(".tiny.lock"))
    try:
        with pytest.raises(
            BackendEnvironmentError, match=f"process {os.getpid()} is already creating"
        ):
            create_environment(order, SILENT)
    finally:
        os.close(descriptor)
    assert not order.directory.exists()


def test_what_a_killed_process_left_is_no_environment_and_is_made_anew(order: Order) -> None:
    order.directory.mkdir(parents=True)
    (order.directory / UNFINISHED).touch()
    (order.directory / "half").touch()
    assert find_environments(Settings()) == {}
    made = create_environment(order, SILENT)
    assert not (made.directory / "half").exists()


@pytest.mark.parametrize("begun", ["nothing", "the directory", "the mark"])
def test_what_a_killed_replacement_put_aside_is_back(order: Order, begun: str) -> None:
    made = create_environment(order, SILENT)
    made.directory.rename(made.directory.with_name(".tiny.before"))
    if begun != "nothing":
        made.directory.mkdir()
    if begun == "the mark":
        (made.directory / UNFINISHED).touch()
    assert create_environment(order, SILENT) == made
    assert not made.directory.with_name(".tiny.before").exists()


def test_an_environment_whose_maker_was_killed_right_after_its_record_is_finished(
    order: Order,
) -> None:
    made = create_environment(order, SILENT)
    (made.directory / UNFINISHED).touch()
    assert create_environment(order, SILENT) == made
    assert not (made.directory / UNFINISHED).exists()


def test_what_a_killed_process_was_removing_is_gone(order: Order) -> None:
    half = order.directory.with_name(".tiny.removed")
    half.mkdir(parents=True)
    (half / "pyvenv.cfg").touch()
    create_environment(order, SILENT)
    assert not half.exists()


def test_a_process_killed_in_the_middle_leaves_no_environment_and_the_next_one_makes_it(
    order: Order, tmp_path: Path, wheels: Path
) -> None:
    """Killed for real, while pip runs; what pip still does is waited for by the lock."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    # Makes the directory as venv does, and then takes for ever.
    slow = tmp_path / "slow-python"
    slow.write_text(f'#!/bin/sh\nmkdir "$3/bin"\ntouch "$3/pyvenv.cfg"\ncat {fifo}\n')
    slow.chmod(0o755)
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from ajet_installation.create import Order, ProgressCallbacks, create_environment\n"
        "from ajet_installation.pythons import Python\n"
        "from ajet_installation.recipes import read_recipe\n"
        "from ajet_installation.sources import Source\n"
        "recipe, directory, python = map(Path, sys.argv[1:])\n"
        "python = Python(str(python), '3.11.0')\n"
        "order = Order(read_recipe(recipe), 'cpu', directory, python, Source())\n"
        "create_environment(order, ProgressCallbacks(lambda _: None, lambda _: None))\n"
    )
    recipe = order.recipe.directory / "tiny.toml"
    command = [sys.executable, "-c", code, str(recipe), str(order.directory), str(slow)]
    first = subprocess.Popen(command, cwd=ROOT)
    # Opening a fifo waits for the one who reads it: the program runs.
    with fifo.open("w"):
        first.kill()
        first.wait()
        assert find_environments(Settings()) == {}
        with pytest.raises(
            BackendEnvironmentError, match=f"process {first.pid} is already creating"
        ):
            create_environment(order, SILENT)
    # The program has read the end of the fifo and goes; with it goes the lock.
    with order.directory.with_name(".tiny.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
    made = create_environment(order, SILENT)
    assert output(made, "import tiny; print(tiny.MODE)") == "cpu"


def test_another_recipe_needs_force(order: Order, tmp_path: Path) -> None:
    create_environment(order, SILENT)
    newer = tiny_recipe(tmp_path / "newer", gigabytes="0.002")
    with pytest.raises(ConfigError, match=r"ajet env create tiny --cpu --force"):
        create_environment(replace(order, recipe=newer), SILENT)
    with pytest.raises(ConfigError, match="is already the environment tiny for cpu"):
        create_environment(replace(order, device="gpu"), SILENT)


def test_a_directory_with_something_else_is_never_removed(order: Order) -> None:
    order.directory.mkdir(parents=True)
    (order.directory / "thesis.tex").touch()
    for force in (False, True):
        with pytest.raises(ConfigError, match="is not empty and is not a Python environment"):
            create_environment(replace(order, force=force), SILENT)
    assert (order.directory / "thesis.tex").exists()


def test_somebodys_own_environment_is_replaced_by_force_alone(order: Order) -> None:
    order.directory.mkdir(parents=True)
    (order.directory / "pyvenv.cfg").touch()
    with pytest.raises(ConfigError, match="that ajet did not create"):
        create_environment(order, SILENT)
    assert create_environment(replace(order, force=True), SILENT).name == "tiny"


def test_too_little_room_is_said_before_anything_is_done(order: Order, tmp_path: Path) -> None:
    large = tiny_recipe(tmp_path / "large", gigabytes="1000000")
    with pytest.raises(BackendEnvironmentError, match=r"needs about 1e\+06 GB, but .* GB free"):
        create_environment(replace(order, recipe=large), SILENT)
    assert not order.directory.exists()


def test_a_disk_that_fills_up_is_named_as_the_cause(order: Order, tmp_path: Path) -> None:
    full = tmp_path / "full-python"
    full.write_text("#!/bin/sh\necho 'OSError: [Errno 28] No space left on device'\nexit 1\n")
    full.chmod(0o755)
    with pytest.raises(BackendEnvironmentError, match=r"failed \(the disk is full\)"):
        create_environment(replace(order, python=Python(str(full), "3.11.0")), SILENT)


def test_a_file_that_cannot_be_written_is_an_error_of_the_environment(order: Order) -> None:
    order.directory.with_name("tiny.log").mkdir(parents=True)
    with pytest.raises(BackendEnvironmentError, match=r"cannot create .*tiny: .*tiny\.log"):
        create_environment(order, SILENT)
    assert not order.directory.exists()


def test_an_unreachable_index_is_named_as_the_cause(
    either: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    # Nothing listens on this port.
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(BackendEnvironmentError, match="cannot reach a package index"):
        create_environment(either, SILENT)


@pytest.fixture
def with_plugin(either: Order, wheels: Path) -> Order:
    """A plugin that needs a distribution with another name, and one that no step installs."""
    order = either
    site = sysconfig.get_path("purelib")
    wheel(wheels, "core-link", "1.0", {"core.pth": f"{ROOT}\n{site}\n"})
    wheel(wheels, "light", "1.0", {"light.py": ""})
    plugin_wheel(wheels, ENGINE)
    wheel(wheels, "heavy-cpu", "1.0", {})
    recipe = tiny_recipe(order.recipe.directory, package='tiny", "heavy-cpu')
    return replace(
        order, recipe=recipe, source=Source(("core-link",), ("tiny-plugin",), ("tiny-plugin",))
    )


def plugin_wheel(wheels: Path, engine: str) -> None:
    wheel(
        wheels,
        "tiny-plugin",
        "1.0",
        {
            "tiny_hooks.py": HOOKS.format(name="tiny", target="tiny_engine:Engine"),
            "tiny_engine.py": engine,
        },
        requires=["heavy>=1", "light", "agentjet>=0.1"],
        entry_points=plugin_entry_points("tiny", "tiny_hooks"),
    )


ENGINE = """
import tiny, light
from ajet_core.interfaces import Engine as Base

class Engine(Base):
    start = generate = update_weights = stats = pause = resume = close = None
"""


def test_the_plugin_is_installed_with_what_it_needs(with_plugin: Order) -> None:
    made = create_environment(with_plugin, SILENT)
    assert made.record.plugins == ["tiny-plugin"]
    assert made.record.packages.keys() >= {"tiny", "heavy-cpu", "light"}
    names = {path.name for path in made.plugin_directory.iterdir()}
    assert {"tiny_hooks.py", "tiny_engine.py"} <= names
    assert not {"tiny.py", "light.py"} & names


def test_a_plugin_that_cannot_be_imported_there_is_a_failure(
    with_plugin: Order, wheels: Path
) -> None:
    wheel(wheels, "light", "1.0", {"light.py": "raise ImportError('no light')"})
    with pytest.raises(BackendEnvironmentError, match="no light"):
        create_environment(with_plugin, SILENT)
    assert not with_plugin.directory.exists()


def test_a_plugin_that_comes_later_is_added(with_plugin: Order) -> None:
    without = replace(with_plugin, source=Source(("core-link",), note="no plugin yet"))
    assert create_environment(without, SILENT).record.note == "no plugin yet"
    steps: list[str] = []
    made = create_environment(with_plugin, replace(SILENT, step=steps.append))
    assert made.record.plugins == ["tiny-plugin"]
    assert not made.record.note
    assert not any("step" in step for step in steps)


def test_a_plugin_built_again_is_not_taken_from_a_cache(with_plugin: Order, wheels: Path) -> None:
    def engines() -> list[str]:
        return [path.read_text() for path in with_plugin.directory.rglob("tiny_engine.py")]

    create_environment(with_plugin, SILENT)
    assert engines() == [ENGINE] * 2
    again = f"{ENGINE}# built again\n"
    plugin_wheel(wheels, again)
    create_environment(replace(with_plugin, force=True), SILENT)
    assert engines() == [again] * 2


def test_the_lock_outlives_a_killed_process_as_long_as_its_pip_runs(
    order: Order, tmp_path: Path
) -> None:
    """Otherwise a second process would remove what the first one's pip still writes."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    slow = tmp_path / "slow-python"
    slow.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\ncat {fifo}\n")
    slow.chmod(0o755)
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from ajet_installation.running import Runner\n"
        "from ajet_core.files import lock_file\n"
        "runner = Runner(Path(sys.argv[1]), lambda _: None, lock_file(Path(sys.argv[2])))\n"
        "runner.run('working', [sys.argv[3]])\n"
    )
    lock = tmp_path / "lock"
    command = [sys.executable, "-c", code, str(tmp_path / "log"), str(lock), str(slow)]
    first = subprocess.Popen(command, cwd=ROOT)
    # Opening a fifo waits for the one who reads it: the program runs.
    with fifo.open("w"):
        first.kill()
        first.wait()
        with pytest.raises(BlockingIOError):
            lock_file(lock)
