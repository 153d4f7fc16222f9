"""The judge ``unit_tests``: runs the code of an answer against tests, each in its own sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import threading
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from agentjet import EpisodeOutcome
from agentjet.judges import JudgeFailedError
from ajet_core.errors import ConfigError, SandboxError
from ajet_core.interfaces import BoxExit, BoxLimits, BoxProgram, ComponentSettings, Judge, Sandbox
from ajet_exec.sandboxes import load_sandbox
from ajet_exec.workshop import Workshop

_PROCESS = Path(__file__).with_name("unit_test_process.py")
_PORT = 8100
_LONGEST = 86_400.0
_SHOWN = 300
_OUTPUT = 2**20
_FENCE = re.compile(r"^[ ]{0,3}```[^\n`]*\n(.*?)^[ ]{0,3}```[ ]*$", re.DOTALL | re.MULTILINE)


class UnitTestsSettings(ComponentSettings):
    """:param tests: the field of a task with its tests.

    They are Python code with functions ``test_...`` or assertions, a list of such texts, or a list
    of ``{"input": TEXT, "output": TEXT}``.

    :param entry_point: the field of a task with the name of the function that ``check(candidate)``
        of its tests gets.
    :param credit: ``all`` gives 1 if all tests pass, else 0; ``share`` gives the share that pass.
    :param sandbox: the sandbox; its settings are those of ``[sandboxes.NAME]``.
    :param command: what runs a program that is tested by its input and output.
    :param python: the interpreter of tests that are code, in the sandbox.
    :param timeout_seconds: of one test, by the clock. It is long, for machines that are busy.
    :param cpu_seconds: of one test.
    :param memory_bytes: of each process.
    :param at_once: most answers that are tested at a time.
    """

    tests: Annotated[str, Field(min_length=1)] = "tests"
    entry_point: str = "entry_point"
    credit: Literal["all", "share"] = "all"
    sandbox: str = "bubblewrap"
    command: Annotated[tuple[str, ...], Field(min_length=1)] = ("python3", "/work/answer.py")
    python: str = "python3"
    timeout_seconds: Annotated[float, Field(gt=0)] = 60.0
    cpu_seconds: Annotated[int, Field(ge=1)] = 5
    memory_bytes: Annotated[int, Field(ge=2**26)] = 2**30
    at_once: Annotated[int, Field(ge=1)] = 4


class UnitTestsJudge(Judge[UnitTestsSettings]):
    """Rewards code by tests that it cannot see and whose verdict it cannot reach.

    The answer and its tests run in two sandboxes, without a network and without this process's
    environment. Tests call the answer's functions over a connection on which plain data passes, so
    that an answer that ends early, prints, or changes Python changes its own process alone. Without
    a sandbox there is no verdict.
    """

    def __init__(self, settings: UnitTestsSettings) -> None:
        super().__init__(settings)
        self._sandbox: Sandbox = load_sandbox(settings.sandbox)
        if not self._sandbox.isolated:
            raise ConfigError(
                f"the sandbox {settings.sandbox!r} does not separate an answer from its tests: "
                "choose another one",
                param="judges.unit_tests.sandbox",
            )
        self._places = threading.BoundedSemaphore(settings.at_once)

    def __call__(self, task: Any, result: Any) -> Any:
        """Return the outcome, or an awaitable of it if an event loop is running.

        :raises ConfigError: the task has no tests, or they are wrong.
        :raises JudgeFailedError: they could not be run.
        """
        tests = _tests(task, self.settings.tests)
        entry = _field(task, self.settings.entry_point)
        code = code_of("" if result is None else str(result))
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._judge(tests, entry, code)
        return asyncio.to_thread(self._judge, tests, entry, code)

    def _judge(self, tests: list[Any], entry: Any, code: str) -> EpisodeOutcome:
        cases = isinstance(tests[0], Mapping)
        run = self._cases(tests, code) if cases else self._functions(tests, entry, code)
        try:
            with self._places:
                failures, total = asyncio.run(run)
        except SandboxError as error:
            raise JudgeFailedError(f"the tests could not be run: {error.message}") from error
        except OSError as error:
            raise JudgeFailedError(f"the tests could not be run: {error}") from error
        share = 1 - len(failures) / total
        first = next(iter(failures.items()), None)
        return EpisodeOutcome(
            reward=share if self.settings.credit == "share" else float(not failures),
            components={"passed": share},
            metadata={"failed": f"{first[0]}: {first[1]}"[:_SHOWN]} if first else {},
        )

    async def _cases(
        self, cases: Sequence[Mapping[str, str]], code: str
    ) -> tuple[dict[str, str], int]:
        """Run a program on inputs, and return the failures and the number of tests."""
        failures: dict[str, str] = {}
        for number, case in enumerate(cases, 1):
            wanted = case["output"]
            # Each has a new copy, so that none leaves anything to the next one.
            async with self._directory() as directory:
                await asyncio.to_thread(_write, directory / "work/answer.py", code)
                await asyncio.to_thread(_write, directory / "stdin", case["input"])
                ended = await self._sandbox.run(
                    self._program(
                        directory,
                        self.settings.command,
                        stdin=directory / "stdin",
                        output_bytes=max(_OUTPUT, 4 * len(wanted) + 4096),
                    ),
                    timeout=self.settings.timeout_seconds,
                    grace=1.0,
                )
                said = await asyncio.to_thread(_read, directory / "stdout")
                error = await asyncio.to_thread(_read, directory / "stderr")
            if ended.timed_out:
                failures[f"case {number}"] = "it took too long"
            elif ended.status:
                failures[f"case {number}"] = f"status {ended.status}: {error.strip()[-200:]}"
            elif _lines(said) != _lines(wanted):
                failures[f"case {number}"] = "another output"
            if failures and self.settings.credit == "all":
                break
        return failures, len(cases)

    async def _functions(
        self, tests: Sequence[str], entry: Any, code: str
    ) -> tuple[dict[str, str], int]:
        """Run tests that are code, and return the failures and the number of tests."""
        calls = _Calls()
        async with self._directory() as ours, self._directory() as theirs:
            await asyncio.to_thread(_write, theirs / "work/answer.py", code)
            plan = {
                "tests": tests,
                "entry_point": entry if isinstance(entry, str) else "",
                "timeout": self.settings.timeout_seconds,
                "cpu_seconds": self.settings.cpu_seconds,
                "stop": self.settings.credit == "all",
            }
            await asyncio.to_thread(_write, ours / "work/plan.json", json.dumps(plan))
            process = await asyncio.to_thread(_read, _PROCESS)
            for directory in (ours, theirs):
                await asyncio.to_thread(_write, directory / "work/process.py", process)
            answering = asyncio.create_task(self._side(theirs, "answer", calls.answer))
            answering.add_done_callback(lambda _: calls.close())
            try:
                # The tests end by themselves, and each of them by its limits.
                ended = await self._side(ours, "test", calls.test)
            finally:
                calls.close()
                await asyncio.wait({answering}, timeout=1.0)
                answering.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await answering
            lines = (await asyncio.to_thread(_read, ours / "stdout")).splitlines()
            error = (await asyncio.to_thread(_read, ours / "stderr")).strip()
        facts = [json.loads(line) for line in lines]
        for fact in facts:
            if "wrong" in fact:
                raise ConfigError(f"the tests of a task are wrong: {fact['wrong']}", param="tests")
            if "broken" in fact:
                raise JudgeFailedError(f"the tests could not be run: {fact['broken']}")
        if not facts or "done" not in facts[-1]:
            raise JudgeFailedError(
                f"the process of the tests ended with status {ended.status}: {error[-_SHOWN:]}"
            )
        failures = {fact["test"]: fact["failed"] for fact in facts if fact.get("failed")}
        return failures, facts[0]["total"]

    async def _side(
        self,
        directory: Path,
        side: str,
        serve: Callable[[StreamReader, StreamWriter], Awaitable[None]],
    ) -> BoxExit:
        command = (self.settings.python, "-B", "/work/process.py", side, str(_PORT))
        program = self._program(directory, command, endpoints={_PORT: serve})
        return await self._sandbox.run(program, timeout=_LONGEST, grace=1.0)

    def _program(
        self,
        directory: Path,
        command: Sequence[str],
        *,
        stdin: Path | None = None,
        output_bytes: int = _OUTPUT,
        endpoints: Mapping[int, Any] | None = None,
    ) -> BoxProgram:
        settings = self.settings
        return BoxProgram(
            argv=command,
            environ={
                "PATH": os.environ.get("PATH", os.defpath),
                "LANG": "C.UTF-8",
                "HOME": "/work",
                "PYTHONDONTWRITEBYTECODE": "1",
                "PYTHONHASHSEED": "0",
            },
            work=directory / "work",
            stdin=stdin,
            stdout=directory / "stdout",
            stderr=directory / "stderr",
            hidden=[Workshop().base],
            endpoints=endpoints or {},
            limits=BoxLimits(
                memory_bytes=settings.memory_bytes,
                file_bytes=2**26,
                cpu_seconds=settings.cpu_seconds,
                output_bytes=output_bytes,
            ),
        )

    @contextlib.asynccontextmanager
    async def _directory(self) -> Any:
        workshop = Workshop()
        workshop.open()
        try:
            async with workshop.episode() as directory:
                yield directory
        finally:
            workshop.close()


class _Calls:
    """Joins each connection of the tests' sandbox with the next one of the answer's."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[tuple[StreamReader, StreamWriter, asyncio.Event]] = (
            asyncio.Queue()
        )
        self._closed = asyncio.Event()

    def close(self) -> None:
        """End the connections that wait for a test."""
        self._closed.set()

    async def answer(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Serve a connection of the answer's sandbox, until its test has ended."""
        ended = asyncio.Event()
        self._waiting.put_nowait((reader, writer, ended))
        waits = [asyncio.create_task(one.wait()) for one in (ended, self._closed)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()
            writer.close()

    async def test(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Serve a connection of the tests' sandbox."""
        getting = asyncio.create_task(self._waiting.get())
        closing = asyncio.create_task(self._closed.wait())
        await asyncio.wait({getting, closing}, return_when=asyncio.FIRST_COMPLETED)
        closing.cancel()
        if not getting.done():
            getting.cancel()
            writer.close()
            return
        theirs, answers, ended = getting.result()
        flows = [
            asyncio.create_task(_flow(reader, answers)),
            asyncio.create_task(_flow(theirs, writer)),
        ]
        try:
            await asyncio.wait(flows, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for flow in flows:
                flow.cancel()
            ended.set()
            writer.close()


async def _flow(reader: StreamReader, writer: StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()


def code_of(text: str) -> str:
    """Return the code of an answer: its last Markdown fence, or all of it without one."""
    fences = _FENCE.findall(text)
    return fences[-1] if fences else text


def _tests(task: Any, name: str) -> list[Any]:
    """:raises ConfigError: the task has no tests of a known form."""
    tests = _field(task, name)
    if isinstance(tests, str) and tests.lstrip().startswith("["):
        # Rows of tables have texts only.
        with contextlib.suppress(ValueError):
            tests = json.loads(tests)
    if isinstance(tests, str) and tests.strip():
        return [tests]
    if isinstance(tests, list) and tests:
        if all(isinstance(test, str) for test in tests):
            return tests
        texts = [
            isinstance(test, Mapping)
            and isinstance(test.get("input"), str)
            and isinstance(test.get("output"), str)
            for test in tests
        ]
        if all(texts):
            return tests
    raise ConfigError(
        f"a task has no tests in the field {name!r}: Python code, a list of such texts, or a list "
        'of {"input": TEXT, "output": TEXT}; judges.unit_tests.tests names another field',
        param="judges.unit_tests.tests",
    )


def _field(task: Any, name: str) -> Any:
    return task.get(name) if isinstance(task, Mapping) else getattr(task, name, None)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", errors="replace")


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]
