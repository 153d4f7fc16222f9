"""The launcher: one episode of a program, from its working copy to its reward."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from agentjet import AsyncSwarmClient, EpisodeOutcome, Task
from agentjet.agents import AsyncTrainable
from agentjet.agents.options import TrainableOptions
from agentjet.agents.tasks import item_of
from agentjet.client import Episode
from ajet_core.interfaces import BoxExit, BoxProgram, Sandbox
from ajet_exec.disk import missing_room, used_bytes
from ajet_exec.endpoint import egress_proxy, port_of, relay
from ajet_exec.grading import GradingError, ProgramResult, reward_in, reward_of
from ajet_exec.profiles import filled, introduced
from ajet_exec.redacting import redact_file
from ajet_exec.terms import ProgramTerms
from ajet_exec.workshop import Workshop

_log = logging.getLogger("ajet.exec")

_SIGNAL_BASE, _SIGNALS = 128, 65
_PROXY_PORT = 3128
_PASSED = ("PATH", "LANG", "TERM")
_TAIL = 600
_LAST_LINE = 2**16
_SHOWN = 2**20

OnEpisode = Callable[[str, str], object]
"""Receives what happens in an episode: a heading and a text. For debugging."""


class NoCallsError(RuntimeError):
    """A program ended without a model call, so that nothing of it can be trained.

    :ivar how: how it ended, without a word of the program.
    """

    def __init__(self, how: str, said: str) -> None:
        super().__init__(f"{how}; {said}")
        self.how = how


@dataclass(frozen=True, slots=True)
class _Places:
    """Where things are, as the program sees them."""

    work: str
    home: str
    task: str
    prompt: str


class BoxedProgram(AsyncTrainable[EpisodeOutcome]):
    """A program in a sandbox as an agent: for `agentjet.train_async` and the client's runners.

    :param client: the client of the server that the episodes are claimed from.
    :param on_episode: called with what happens in episodes.
    :param base: directory of working copies; by default one for temporary files.
    """

    def __init__(
        self,
        program: ProgramTerms,
        sandbox: Sandbox,
        client: AsyncSwarmClient,
        *,
        on_episode: OnEpisode | None = None,
        base: Path | None = None,
    ) -> None:
        async def run(task: Any) -> EpisodeOutcome:
            raise TypeError(f"task {task!r}: a program in a sandbox needs an episode to run in")

        super().__init__(run, TrainableOptions(rules=program.call_rules), client)
        self._server = client
        self._program = program
        self._sandbox = sandbox
        self._show = on_episode or (lambda *_: None)
        self._workshop = Workshop(program.files, program.git, base, program.disk_bytes)
        self._kept_failures = 0

    async def __aenter__(self) -> BoxedProgram:
        """Make the directory of working copies.

        :raises AjetError: that is not possible.
        """
        self._workshop.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._workshop.close()

    def through(self, client: Any) -> BoxedProgram:
        """Extend the base class: the copy has the same working copies."""
        other = copy.copy(self)
        other.client = other._server = client
        return other

    async def agent(self, task: Task, episode: Any) -> EpisodeOutcome:
        """Run the program as an episode, and return its reward.

        :raises SandboxError: the sandbox failed.
        :raises DiskFullError: the disk is full.
        :raises DiskBudgetError: the programs used more of the disk than they may.
        :raises NoCallsError: the program made no model call that was answered.
        :raises GradingError: the reward failed.
        """
        async with self._workshop.episode() as directory:
            done = False
            try:
                outcome = await self._rolled_out(task, episode, directory)
                done = True
            finally:
                failed = not done and self._kept_failures < self._program.keep_failed
                self._kept_failures += failed
                with contextlib.suppress(OSError):
                    redact_file(directory / "stdout", episode.api_key)
                    redact_file(directory / "stderr", episode.api_key)
                try:
                    if self._program.keep or failed:
                        await asyncio.to_thread(self._keep_all, directory, episode)
                    elif self._program.artifacts:
                        await asyncio.to_thread(self._keep_artifacts, directory, episode)
                # What cannot be kept changes no reward.
                except OSError as error:
                    _log.warning("files of episode %s are not kept: %s", episode.episode_id, error)
            return outcome

    async def _rolled_out(self, task: Task, episode: Episode, directory: Path) -> EpisodeOutcome:
        ended = await self._run(task, episode, directory)
        await self._workshop.check(directory)
        stdout, stderr = directory / "stdout", directory / "stderr"
        redact_file(stdout, episode.api_key)
        redact_file(stderr, episode.api_key)
        # The program may have written its key into a file that the reward sees.
        server = self._server
        asked = server.end_calls if self._program.ends_calls else server.episode_status
        status = await asked(episode)
        result = ProgramResult(
            task=item_of(task),
            work=directory / "work",
            status=ended.status,
            # No signal has a larger number.
            signal=number if 0 < (number := ended.status - _SIGNAL_BASE) < _SIGNALS else 0,
            timed_out=ended.timed_out,
            seconds=ended.seconds,
            calls=status.calls,
            limit=status.limit,
            stdout=stdout,
            stderr=stderr,
        )
        self._show("stdout", _tail(stdout, _SHOWN))
        self._show("stderr", _tail(stderr, _SHOWN))
        self._show("result", json.dumps(result.facts()))
        if not status.calls:
            how = "was stopped after its time limit" if ended.timed_out else "ended"
            raise NoCallsError(
                f"the program {how} with status {ended.status} and made no model call that was "
                "answered",
                _last_words(stdout, stderr),
            )
        outcome = await self._reward(result, directory)
        await self._workshop.check(directory)
        facts = {key: str(value) for key, value in result.facts().items()}
        return replace(outcome, metadata={**facts, **outcome.metadata})

    async def _run(self, task: Task, episode: Episode, directory: Path) -> BoxExit:
        program, isolated = self._program, self._sandbox.isolated
        work = directory / "work"
        places = _places(work, isolated=isolated)
        item = item_of(task)
        prompt = _prompt(item, program.prompt_field)
        control = work / ".ajet"
        visible = _without(item, program.hidden_fields)
        (control / "task.json").write_text(json.dumps(visible), encoding="utf-8")
        (control / "prompt.txt").write_text(prompt, encoding="utf-8")
        base_url = episode.base_url
        port = port_of(base_url)
        endpoints = {}
        environ = self._environ()
        if isolated:
            # In a box of its own network the port may be below 1024, but the user is not root.
            port = port if port >= 1024 else port + 8000
            base_url = f"http://127.0.0.1:{port}{urlsplit(base_url).path}"
            endpoints[port] = relay(episode.base_url)
            if program.allow_hosts:
                proxy = _PROXY_PORT if port != _PROXY_PORT else _PROXY_PORT + 1
                endpoints[proxy] = egress_proxy(program.allow_hosts)
                url = f"http://127.0.0.1:{proxy}"
                environ |= {"HTTPS_PROXY": url, "https_proxy": url}
                environ |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        secret = {
            "base_url": base_url,
            "root_url": base_url.removesuffix("/v1"),
            "api_key": episode.api_key,
            "model": episode.model,
            "home": places.home,
        }
        environ |= introduced(program.profile, secret, control / "home")
        environ |= {
            "HOME": places.home,
            "AJET_MODEL": episode.model,
            "AJET_TASK": places.task,
            "AJET_TASK_ID": task.id,
            "AJET_EPISODE_ID": episode.episode_id,
            **program.environ,
        }
        # The key is in no argument: every user of a machine can read those.
        values = {
            "prompt": prompt,
            "prompt_file": places.prompt,
            "task_file": places.task,
            "model": episode.model,
            "base_url": base_url,
            "work": places.work,
        }
        argv = [filled(argument, values) for argument in program.argv]
        self._show("command", json.dumps(argv))
        self._show("environment", episode.redact(json.dumps(environ, indent=1)))
        return await self._sandbox.run(
            BoxProgram(
                argv=argv,
                environ=environ,
                work=work,
                stdin=control / "prompt.txt" if program.stdin == "prompt" else None,
                stdout=directory / "stdout",
                stderr=directory / "stderr",
                read_only=program.read_only,
                hidden=self._hidden(),
                endpoints=endpoints,
                host_network=program.host_network,
                limits=program.limits,
            ),
            timeout=program.timeout,
            grace=program.grace,
        )

    async def _reward(self, result: ProgramResult, directory: Path) -> EpisodeOutcome:
        """Return the reward of an episode.

        :raises GradingError: it could not be determined.
        """
        for name in self._program.profile.files:
            # They contain the key. The program may have put links in their place.
            file = result.work / ".ajet/home" / name
            if file.is_file() and _is_inside(file.parent, result.work):
                file.unlink()
        reward = self._program.reward
        if callable(reward):
            try:
                given = reward(result)
                return EpisodeOutcome.of(await given if inspect.isawaitable(given) else given)
            except Exception as error:
                raise GradingError(f"the reward failed: {type(error).__name__}: {error}") from error
        return await self._reward_by_command(reward, result, directory)

    async def _reward_by_command(
        self, command: tuple[str, ...], result: ProgramResult, directory: Path
    ) -> EpisodeOutcome:
        program, isolated = self._program, self._sandbox.isolated
        facts = directory / "facts"
        facts.mkdir()
        facts.chmod(0o755)
        (facts / "task.json").write_text(json.dumps(result.task), encoding="utf-8")
        (facts / "result.json").write_text(json.dumps(result.facts()), encoding="utf-8")
        shutil.copyfile(result.stdout, facts / "stdout")
        shutil.copyfile(result.stderr, facts / "stderr")
        for file in facts.iterdir():
            file.chmod(0o644)
        seen = "/facts" if isolated else str(facts)
        work = "/work" if isolated else str(result.work)
        # The program has ended, so that nothing of it can be in a directory with this name.
        verifier = result.work / f".ajet-verifier-{uuid4().hex}"
        # A program may take away the right to write.
        result.work.chmod(result.work.stat().st_mode | 0o700)
        verifier.mkdir()
        verifier.chmod(0o777)
        # The working copy alone can be written in a sandbox, so `/logs/verifier` leads there.
        logs = directory / "logs"
        logs.mkdir()
        logs.chmod(0o755)
        (logs / "verifier").symlink_to(f"{work}/{verifier.name}")
        mounts = {**program.read_only, "/facts": facts, "/logs": logs}
        environ = {
            **self._environ(),
            "HOME": "/tmp" if isolated else str(result.work / ".ajet/home"),  # noqa: S108
            "AJET_TASK": f"{seen}/task.json",
            "AJET_RESULT": f"{seen}/result.json",
            "AJET_STDOUT": f"{seen}/stdout",
            "AJET_STDERR": f"{seen}/stderr",
            "AJET_VERIFIER": "/logs/verifier" if isolated else str(verifier),
        }
        if program.tests is not None:
            mounts["/tests"] = program.tests
            environ["AJET_TESTS"] = "/tests" if isolated else str(program.tests.resolve())
        values = {"work": work, "task_file": environ["AJET_TASK"]}
        out, err = directory / "reward-stdout", directory / "reward-stderr"
        ended = await self._sandbox.run(
            BoxProgram(
                argv=[filled(argument, values) for argument in command],
                environ=environ,
                work=result.work,
                stdout=out,
                stderr=err,
                read_only=mounts,
                hidden=self._hidden(),
                host_network=program.reward_network,
                limits=program.limits,
            ),
            timeout=program.reward_timeout,
            grace=program.grace,
        )
        self._show("stdout of the reward", _tail(out, _SHOWN))
        self._show("stderr of the reward", _tail(err, _SHOWN))
        if ended.timed_out:
            raise GradingError(f"the reward command took more than {program.reward_timeout:g} s")
        if ended.status:
            raise GradingError(
                f"the reward command ended with status {ended.status}: {_tail(err) or _tail(out)}"
            )
        return reward_in(verifier) or reward_of(_tail(out, _LAST_LINE))

    def _hidden(self) -> list[Path]:
        """Return what no program may see: solutions, and what belongs to other episodes."""
        program = self._program
        given = [program.tests, program.git[0] if program.git else None]
        return [
            self._workshop.base,
            program.out.absolute(),
            *(path.absolute() for path in given if path is not None),
            *(path.absolute() for path in program.hidden),
        ]

    def _environ(self) -> dict[str, str]:
        """Return the variables of the host that programs get."""
        return {name: os.environ[name] for name in _PASSED if name in os.environ}

    def _keep_all(self, directory: Path, episode: Episode) -> None:
        target = self._program.out / "episodes" / episode.episode_id
        target.mkdir(parents=True, exist_ok=True)
        if missing := missing_room(target, used_bytes(directory)):
            raise OSError(missing)
        for file in directory.rglob("*"):
            # Neither links, which may lead anywhere, nor pipes and sockets.
            if file.is_file() and not file.is_symlink():
                copy_of = target / file.relative_to(directory)
                copy_of.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy_of)
                redact_file(copy_of, episode.api_key)
        self._show("kept in", str(target))

    def _keep_artifacts(self, directory: Path, episode: Episode) -> None:
        target = self._program.out / "episodes" / episode.episode_id
        work = directory / "work"
        target.mkdir(parents=True, exist_ok=True)
        for name in ("stdout", "stderr"):
            if (directory / name).exists():
                shutil.copyfile(directory / name, target / name)
        for pattern in self._program.artifacts:
            for file in work.glob(pattern):
                # A link may lead out of the working copy, to files of the launcher's user.
                if not file.is_file() or not _is_inside(file, work):
                    continue
                copy = target / "artifacts" / file.relative_to(work)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)
                redact_file(copy, episode.api_key)


def _places(work: Path, *, isolated: bool) -> _Places:
    root = "/work" if isolated else str(work)
    control = f"{root}/.ajet"
    return _Places(root, f"{control}/home", f"{control}/task.json", f"{control}/prompt.txt")


def _prompt(item: Any, field: str) -> str:
    """Return the prompt of a task: its field, or the task itself if it is a text."""
    if isinstance(item, Mapping):
        return str(item.get(field, ""))
    return str(item)


def _without(item: Any, hidden: frozenset[str]) -> Any:
    if isinstance(item, Mapping):
        return {key: value for key, value in item.items() if key not in hidden}
    return item


def _is_inside(file: Path, directory: Path) -> bool:
    return file.resolve().is_relative_to(directory.resolve())


def _last_words(stdout: Path, stderr: Path) -> str:
    """Return the end of what a program printed: of its stdout if its stderr is empty."""
    if said := _tail(stderr):
        return f"the end of its stderr: {said}"
    return f"its stderr is empty; the end of its stdout: {_tail(stdout) or '(empty)'}"


def _tail(path: Path, length: int = _TAIL) -> str:
    """Return the end of a file of any size."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - length))
        return file.read(length).decode("utf-8", errors="replace").strip()
