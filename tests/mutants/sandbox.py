"""Mutations of the sandbox of bubblewrap."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Iterator
from typing import Any

from ajet_core.interfaces import BoxExit, BoxLimits, BoxProgram
from ajet_exec.boxes import bubblewrap, capture, owners, watching
from ajet_exec.boxes.bubblewrap import BubblewrapSandbox
from ajet_exec.boxes.tools import limited
from tests.mutants.planting import Mutants, around, put

box = Mutants("sandbox", "tests/exec/test_sandboxes.py::TestFewBubblewrap")
ALL = (box,)


def runs(change: Any) -> None:
    """Change the program before it runs."""

    async def run(original: Any, self: Any, program: BoxProgram, **times: float) -> BoxExit:
        ended: BoxExit = await original(self, change(program), **times)
        return ended

    around(BubblewrapSandbox, "run", run)


def limits(**changes: Any) -> None:
    """Replace limits of all programs."""
    runs(
        lambda program: dataclasses.replace(
            program, limits=dataclasses.replace(program.limits, **changes)
        )
    )


def argues(change: Any) -> None:
    """Change the arguments of ``bwrap``."""

    def arguments(original: Any, *given: Any) -> Iterator[str]:
        yield from change(list(original(*given)))

    around(BubblewrapSandbox, "_arguments", arguments)


def ends(**changes: Any) -> None:
    """Report another end."""

    async def run(original: Any, *given: Any, **named: Any) -> BoxExit:
        return dataclasses.replace(await original(*given, **named), **changes)

    around(BubblewrapSandbox, "run", run)


@box
def the_status_is_lost() -> None:
    ends(status=0)


@box
def time_limits_are_not_reported() -> None:
    ends(timed_out=False)


@box
def the_environment_of_the_launcher_is_passed() -> None:
    runs(lambda program: dataclasses.replace(program, environ={**os.environ, **program.environ}))


@box
def variables_are_passed_as_arguments() -> None:
    """As with ``env NAME=VALUE program``: other users of the machine could read the key."""

    def change(program: BoxProgram) -> BoxProgram:
        given = [f"{name}={value}" for name, value in program.environ.items()]
        return dataclasses.replace(program, argv=("env", *given, *program.argv))

    runs(change)


@box
def the_network_is_open() -> None:
    argues(lambda given: [argument for argument in given if argument != "--unshare-net"])


@box
def directories_of_the_host_are_shown() -> None:
    put(BubblewrapSandbox, "_empty_directories", lambda *_: ["/tmp"])


@box
def the_host_can_be_written() -> None:
    """Its temporary files, as with ``--bind /tmp /tmp``."""
    argues(lambda given: [*given, "--bind", "/var/tmp", "/var/tmp"])


@box
def processes_of_the_host_are_shown() -> None:
    argues(lambda given: [*given, "--ro-bind", "/proc", "/proc"])


@box
def what_is_read_only_can_be_written() -> None:
    def change(given: list[str]) -> list[str]:
        at = given.index("/data") - 2 if "/data" in given else None
        return given if at is None else [*given[:at], "--bind", *given[at + 1 :]]

    argues(change)


@box
def privileges_are_kept() -> None:
    put(
        bubblewrap,
        "_inside",
        lambda program, _: [*limited(program.limits), *program.argv],
    )


@box
def memory_is_not_limited() -> None:
    limits(memory_bytes=None)


@box
def processes_are_not_limited() -> None:
    limits(processes=None)


@box
def files_are_not_limited() -> None:
    limits(file_bytes=None)


@box
def output_is_not_capped() -> None:
    limits(output_bytes=2**40)


@box
def the_end_of_output_is_lost() -> None:
    def append(original: Any, self: Any, data: bytes) -> None:
        original(self, data[: max(0, self._half - self._written)])

    around(capture.CappedFile, "_append", append)


@box
def time_limits_are_ignored() -> None:
    async def run(original: Any, self: Any, program: BoxProgram, **_: float) -> BoxExit:
        # For a test with a limit of a few seconds this is without end.
        ended: BoxExit = await original(self, program, timeout=60.0, grace=5.0)
        return ended

    around(BubblewrapSandbox, "run", run)


@box
def programs_are_killed_without_a_signal_before() -> None:
    around(
        watching,
        "watched",
        lambda original, *given, **named: original(*given, **{**named, "grace": 0.0}),
    )
    put(bubblewrap, "watched", watching.watched)


@box
def a_cancelled_program_runs_on() -> None:
    async def run(original: Any, *given: Any, **named: Any) -> BoxExit:
        running = asyncio.ensure_future(original(*given, **named))
        ended: BoxExit = await asyncio.shield(running)
        return ended

    around(BubblewrapSandbox, "run", run)


@box
def daemons_run_on() -> None:
    """The program shares the process ids of the host, and only itself is waited for."""
    argues(lambda given: [argument for argument in given if argument != "--unshare-pid"])


@box
def a_killed_launcher_leaves_its_boxes() -> None:
    argues(lambda given: [argument for argument in given if argument != "--die-with-parent"])
    put(owners, "kill_marked", lambda _: None)


@box
def limits_are_those_of_all_programs() -> None:
    runs(lambda program: dataclasses.replace(program, limits=BoxLimits()))
