"""Requests for tasks, and what is kept of the answers: new, checked and measured tasks."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agentjet.judges.endpoint import ChatEndpoint, EndpointFailedError
from ajet_core.errors import ConfigError
from ajet_core.files import lock_file, read_json, write_whole
from ajet_core.interfaces import Task, TaskSource
from ajet_core.plugin import PluginManager
from ajet_sources.checking import check_source
from ajet_sources.evaluating import EpisodeFile, EvaluatedEpisode, evaluate_source
from ajet_sources.generation.duplicates import SeenTexts
from ajet_sources.generation.plan import (
    GenerationLimits,
    GenerationPlan,
    GenerationReport,
    SolveRate,
    Stop,
)
from ajet_sources.generation.recording import AnswerRecording, RowFile
from ajet_sources.generation.tasks import WrittenTask, read_tasks_of
from ajet_sources.names import ROWS, SourceName, load_source
from ajet_sources.reading import RowsSettings


async def generate_tasks(
    plan: GenerationPlan,
    out: Path,
    endpoint: ChatEndpoint | None,
    limits: GenerationLimits,
    *,
    recording: Path | None = None,
    plugins: PluginManager | None = None,
    on_round: Callable[[GenerationReport], object] | None = None,
) -> GenerationReport:
    """Write tasks to a file of rows, or continue it.

    Each answer is kept in the directory ``OUT.generation`` before anything else is done with it,
    and so is each attempt. Requests whose answers are kept are not made again. An endpoint that
    fails ends the generation; the report has its error, and counts what was kept.

    :param out: the file, which ends in ``.jsonl``.
    :param endpoint: None takes all answers from the recording.
    :param recording: the file with the answers; None is ``answers.jsonl`` in the directory.
    :param plugins: the plugin manager to use; None uses that of this process.
    :raises ConfigError: the file belongs to another plan, or another process is writing it.
    :raises UnreadableFileError: what was kept is damaged.
    """
    with ExitStack() as locks:
        directory = locks.enter_context(_output(out))
        if recording is not None:
            locks.enter_context(_locked(recording.with_name(f"{recording.name}.lock"), recording))
        return await _Generation(
            plan,
            out,
            directory=directory,
            endpoint=endpoint,
            limits=limits,
            recording=recording,
            plugins=plugins,
            on_round=on_round,
        ).run()


@contextmanager
def _output(out: Path) -> Iterator[Path]:
    """Lock the directory of a file of rows."""
    directory = out.with_name(f"{out.name}.generation")
    if out.exists() and not directory.exists():
        raise ConfigError(f"{out} exists and was not generated: choose another file", param="out")
    with _locked(directory / "lock", out):
        yield directory


@contextmanager
def _locked(path: Path, what: Path) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = lock_file(path)
    except BlockingIOError as error:
        raise ConfigError(
            f"process {error} is writing {what}: wait for it, or end it", param="out"
        ) from error
    except OSError as error:
        raise ConfigError(f"{what} cannot be written: {error}", param="out") from error
    try:
        yield
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class _Candidate:
    task: WrittenTask
    whence: Mapping[str, Any]


class _Generation:
    """One call of `generate_tasks`.

    Requests are made in rounds of `concurrency`. Answers are read in the order of the requests, so
    that the rows do not depend on which of them came first.
    """

    def __init__(
        self,
        plan: GenerationPlan,
        out: Path,
        *,
        directory: Path,
        endpoint: ChatEndpoint | None,
        limits: GenerationLimits,
        recording: Path | None,
        plugins: PluginManager | None,
        on_round: Callable[[GenerationReport], object] | None,
    ) -> None:
        self._plan = plan
        self._limits = limits
        self._directory = directory
        self._endpoint = endpoint
        self._plugins = plugins
        self._on_round = on_round
        self._same_plan(out)
        self._answers = AnswerRecording(recording or directory / "answers.jsonl")
        self._checks = RowFile(directory / "checks.jsonl")
        self._episodes = EpisodeFile(directory / "attempts.jsonl")
        self._kept = [one for one in self._episodes.read() if one.reward is not None]
        # Failed attempts are made again, and a line that was cut off is removed.
        self._episodes.write(self._kept)
        self._out = RowFile(out)
        self._ids = {row.get("id") for row in self._out.rows}
        self._seen = SeenTexts(plan.near)
        for text in [*plan.known, *(example.question for example in plan.examples)]:
            self._seen.add(text)
        self._source_name = SourceName(ROWS, str(directory / "candidates.jsonl"), plan.source)
        settings = load_source(self._source_name, plugins=plugins).settings
        assert isinstance(settings, RowsSettings)
        self._fields = settings
        self._report = GenerationReport(rows=len(self._out.rows))
        self._accepted = 0

    async def run(self) -> GenerationReport:
        report, limits = self._report, self._limits
        with ThreadPoolExecutor(limits.concurrency) as threads:
            while (stop := self._stop()) is None:
                size = min(limits.concurrency, limits.requests - report.asked)
                if limits.budget_calls is not None:
                    size = min(size, limits.budget_calls - report.asked)
                numbers = range(report.asked, report.asked + size)
                asking = (self._ask(number, threads) for number in numbers)
                candidates: list[_Candidate] = []
                for answer in await asyncio.gather(*asking, return_exceptions=True):
                    if isinstance(answer, EndpointFailedError):
                        # What follows is read when this one has its answer, in the same order.
                        stop, report.error = "failed", str(answer)
                        break
                    if isinstance(answer, BaseException):
                        raise answer
                    candidates += self._read(*answer)
                if candidates and not await self._sift(candidates):
                    stop = "failed"
                if self._on_round is not None:
                    self._on_round(report)
                if stop is not None:
                    break
        report.stopped = stop
        report.rows = len(self._out.rows)
        content = json.dumps(asdict(report), indent=1)
        write_whole(self._directory / "report.json", content.encode(), mode=0o644)
        return report

    def _same_plan(self, out: Path) -> None:
        """:raises ConfigError: the rows that exist are of another plan."""
        path, facts = self._directory / "plan.json", json.loads(json.dumps(self._plan.facts()))
        try:
            before = read_json(path)
        except FileNotFoundError:
            prompt = self._directory / "prompt.md"
            write_whole(prompt, self._plan.prompt.text.encode(), mode=0o644)
            write_whole(path, json.dumps(facts, indent=1).encode(), mode=0o644)
            return
        changed = sorted(name for name in facts if facts[name] != before.get(name))
        if changed:
            raise ConfigError(
                f"{out} was begun with other settings ({', '.join(changed)}): repeat them, or "
                f"choose another file; --recording {self._directory / 'answers.jsonl'} takes the "
                "answers to the same requests from there",
                param="out",
            )

    def _stop(self) -> Stop | None:
        report, limits = self._report, self._limits
        if limits.count is not None and self._accepted >= limits.count:
            return "count"
        if report.asked >= limits.requests:
            return "requests"
        if limits.budget_calls is not None and report.asked >= limits.budget_calls:
            return "budget_calls"
        if limits.budget_tokens is not None and report.tokens >= limits.budget_tokens:
            return "budget_tokens"
        return None

    async def _ask(
        self, number: int, threads: ThreadPoolExecutor
    ) -> tuple[dict[str, Any], dict[str, Any], bool]:
        """Return an answer, its provenance, and whether it was recorded before.

        :raises EndpointFailedError: there is none.
        """
        body, whence = self._plan.request(number)
        row = self._answers.get(body)
        recorded = row is not None
        if row is None:
            if self._endpoint is None:
                raise EndpointFailedError(
                    f"the recording {self._answers.path} has no answer to request {number}"
                )
            loop = asyncio.get_running_loop()
            answer = await loop.run_in_executor(threads, self._endpoint.complete, body)
            now = datetime.now(UTC).isoformat(timespec="seconds")
            row = self._answers.add(body, answer.text, answer.tokens, now)
        return row, {**whence, "created": row["created"]}, recorded

    def _read(
        self, row: Mapping[str, Any], whence: Mapping[str, Any], recorded: bool
    ) -> list[_Candidate]:
        """Return the new tasks of an answer."""
        report = self._report
        tasks, malformed = read_tasks_of(row["text"])
        report.asked += 1
        report.recorded += recorded
        report.tokens += row["tokens"]
        report.parsed += len(tasks)
        report.malformed += malformed
        new = []
        for task in tasks:
            match self._seen.add(task.question):
                case None:
                    new.append(_Candidate(task, whence))
                case "duplicate":
                    report.duplicate += 1
                case "near_duplicate":
                    report.near_duplicate += 1
        return new

    async def _sift(self, candidates: Sequence[_Candidate]) -> bool:
        """Keep the good ones; return False if the model that attempts them cannot be reached."""
        rows = {one.task.task_id: self._row(one) for one in candidates}
        path = self._directory / "candidates.jsonl"
        text = "".join(f"{json.dumps(row)}\n" for row in rows.values())
        write_whole(path, text.encode(), mode=0o644)
        async with load_source(self._source_name, plugins=self._plugins) as source:
            tasks = [task for split in source.splits() for task in source.tasks(split)]
            if self._plan.check:
                tasks = await self._without_findings(source, tasks)
            rates: Mapping[str, float] | None = {}
            if self._plan.solve_rate is not None and tasks:
                rates = await self._rates(source, tasks, self._plan.solve_rate)
        if rates is None:
            return False
        good = {task.id for task in tasks}
        for task_id, row in rows.items():
            if task_id in good and self._at_right_rate(row, rates.get(task_id)):
                self._keep(row)
        return True

    async def _without_findings(self, source: TaskSource, tasks: Sequence[Task]) -> list[Task]:
        findings = {row["id"]: row["findings"] for row in self._checks.rows}
        limits = self._limits
        checked = await check_source(
            source,
            [task for task in tasks if task.id not in findings],
            concurrency=limits.concurrency,
            timeout=limits.attempt_timeout,
        )
        for checked_task in checked.tasks:
            findings[checked_task.task_id] = [str(finding) for finding in checked_task.findings]
            # A judge that failed may work again.
            if all(finding.fault != "probe_failed" for finding in checked_task.findings):
                self._checks.add(
                    {"id": checked_task.task_id, "findings": findings[checked_task.task_id]}
                )
        good = [task for task in tasks if not findings[task.id]]
        self._report.failed_check += len(tasks) - len(good)
        shown = [findings[task.id][0] for task in tasks if findings[task.id]]
        self._report.findings = [*self._report.findings, *shown][:5]
        return good

    async def _rates(
        self, source: TaskSource, tasks: Sequence[Task], rate: SolveRate
    ) -> Mapping[str, float] | None:
        """Return by task the share of attempts that passed, None if all of them failed."""
        limits = self._limits
        episodes = await evaluate_source(
            source,
            tasks,
            [rate.endpoint],
            samples=rate.attempts,
            concurrency=max(limits.concurrency, rate.attempts if source.in_groups else 1),
            timeout=limits.attempt_timeout,
            retries=limits.attempt_retries,
            kept=self._kept,
            on_episode=self._episodes.add,
        )
        passed = source.reward_range[1] if rate.pass_reward is None else rate.pass_reward
        by_task: dict[str, list[EvaluatedEpisode]] = {}
        for episode in episodes:
            by_task.setdefault(episode.task_id, []).append(episode)
        failed = [episode for episode in episodes if episode.reward is None]
        if failed:
            self._report.error = self._report.error or failed[0].error
        if len(failed) == len(episodes):
            return None
        rates = {}
        for task_id, own in by_task.items():
            rewards = [one.reward for one in own if one.reward is not None]
            if len(rewards) == len(own):
                rates[task_id] = sum(reward >= passed for reward in rewards) / len(rewards)
        return rates

    def _at_right_rate(self, row: dict[str, Any], rate: float | None) -> bool:
        wanted, report = self._plan.solve_rate, self._report
        if wanted is None:
            return True
        if rate is None:
            report.unmeasured += 1
            return False
        report.too_hard += rate < wanted.low
        report.too_easy += rate > wanted.high
        row["solve_rate"] = rate
        if self._fields.difficulty:
            row[self._fields.difficulty] = 1 - rate
        row["provenance"] = {
            **row["provenance"],
            "solver": wanted.endpoint.model,
            "attempts": wanted.attempts,
        }
        return wanted.low <= rate <= wanted.high

    def _keep(self, row: Mapping[str, Any]) -> None:
        count = self._limits.count
        self._accepted += 1
        if row["id"] not in self._ids and (count is None or len(self._out.rows) < count):
            self._out.add(row)
            self._ids.add(row["id"])
        self._report.rows = len(self._out.rows)

    def _row(self, candidate: _Candidate) -> dict[str, Any]:
        task = candidate.task
        return {
            "id": task.task_id,
            self._fields.prompt or "prompt": task.question,
            self._fields.answer or "answer": task.answer,
            "provenance": dict(candidate.whence),
        }
