"""The clients of `recovery.py`, which record acknowledged ends in a journal.

Each client rolls out rounds of tasks, and waits for a step after each round. ``runner`` and
``async`` use the runners of `agentjet.client`; ``plain`` uses only HTTP. A client ends with status
0 after the round in which the file ``finish`` appears next to its journal. SIGUSR1 makes it write
the stacks of all its threads and tasks to its log.
"""

from __future__ import annotations

import asyncio
import faulthandler
import inspect
import json
import random
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2

if TYPE_CHECKING:
    from agentjet.client import Episode, Task

TOKEN = "recovery-client-token"
CONCURRENCY = 4
CALLS = 2
EPISODES_PER_TASK = 2
# Longer than any outage of the benchmark, so a longer wait is a failure.
GIVE_UP_SECONDS = 180.0
LEASE_SECONDS = 10.0
RETRIES = 3
STARVED = ("no_client", "incomplete_tasks")
FINISH = "finish"


@dataclass
class Journal:
    """A client's records, one JSON object per line.

    :param path: file to append to, also for the client's next process.
    :param started: start time of this process.
    """

    path: Path
    started: float
    called: bool = False
    number: int = field(default=0)

    def note(self, **line: object) -> None:
        """Append a line."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def called_once(self) -> None:
        """Record the first completed call of this process."""
        if not self.called:
            self.called = True
            self.note(first_call=time.time(), started=self.started)

    @property
    def finished(self) -> bool:
        """Whether the client should end after this round."""
        return (self.path.parent / FINISH).exists()

    def rounds(self) -> Iterator[list[str]]:
        """Iterate over the task ids of each round; each id is used once in the whole benchmark."""
        while not self.finished:
            yield [self.task_id() for _ in range(CONCURRENCY)]

    def task_id(self) -> str:
        """Return a task that no client has had before."""
        self.number += 1
        return f"{self.path.stem}-{self.started}-{self.number}"


def body(text: str) -> dict[str, Any]:
    """Return the body of a model call."""
    messages = [{"role": "user", "content": text}]
    return {"model": "any", "messages": messages, "max_tokens": 8, "temperature": 1.0}


def reward_of(episode_id: str) -> float:
    """Return the reward, which is the same each time the outcome is reported."""
    return float(random.Random(episode_id).random() < 0.5)


def make_calls(
    http: httpx2.Client, journal: Journal, task_id: str, base_url: str, api_key: str
) -> None:
    """Make the model calls of an episode."""
    for number in range(CALLS):
        send = {"json": body(f"{task_id} {number}"), "headers": _key(api_key)}
        answered(lambda s=send: http.post(f"{base_url}/chat/completions", **s))
        journal.called_once()


# --- With the runners -----------------------------------------------------------------------------


async def rounds(
    client: Any, agent: Callable[..., Any], journal: Journal, tag: str, kinds: list[str]
) -> None:
    """Run rounds of `run_episodes_until_all_complete`.

    :param client: a `SwarmClient`, which blocks, or an `AsyncSwarmClient`.
    :param agent: an agent for this client.
    """
    from agentjet.client import Task
    from ajet_core.errors import BatchStarvedError

    async def roll_out(ids: list[str], kind: str) -> None:
        await _done(
            client.run_episodes_until_all_complete(
                [Task(task_id, tag=tag) for task_id in ids],
                agent,
                episodes_per_task=EPISODES_PER_TASK,
                concurrency=CONCURRENCY,
                kind=kind,
                retries=RETRIES,
                on_result=lambda result: _ended(journal, result),
            )
        )

    for ids in journal.rounds():
        step = (await _done(client.status())).step + 1
        for kind in kinds:
            await roll_out(ids, kind)
        while True:
            try:
                await _done(client.wait_for_step(step, timeout=GIVE_UP_SECONDS))
                break
            except BatchStarvedError:
                journal.note(more=step)
                await roll_out([journal.task_id()], "train")


async def _done(result: Any) -> Any:
    """Return the result of a method of either client."""
    return await result if inspect.isawaitable(result) else result


def walk(http: httpx2.Client, journal: Journal, task: Task, episode: Episode) -> float:
    """Run an episode for a runner, and return its reward."""
    make_calls(http, journal, task.id, episode.base_url, episode.api_key)
    return reward_of(episode.episode_id)


def run_runner(url: str, journal: Journal, tag: str, kinds: list[str]) -> None:
    """Run rounds with `SwarmClient`."""
    from agentjet.client import SwarmClient

    with httpx2.Client(timeout=GIVE_UP_SECONDS) as http, SwarmClient(url, TOKEN) as client:
        agent = partial(walk, http, journal)
        # This blocks the event loop, which nothing else uses.
        asyncio.run(rounds(client, agent, journal, tag, kinds))


async def run_async(url: str, journal: Journal, tag: str, kinds: list[str]) -> None:
    """Run rounds with `AsyncSwarmClient`."""
    from agentjet.client import AsyncSwarmClient

    def dump() -> None:
        faulthandler.dump_traceback()
        for task in asyncio.all_tasks():
            task.print_stack(file=sys.stderr)
        sys.stderr.flush()

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, dump)
    with httpx2.Client(timeout=GIVE_UP_SECONDS) as http:

        async def agent(task: Task, episode: Episode) -> float:
            return await asyncio.to_thread(walk, http, journal, task, episode)

        async with AsyncSwarmClient(url, TOKEN) as client:
            await rounds(client, agent, journal, tag, kinds)


def _ended(journal: Journal, result: Any) -> None:
    if hasattr(result, "outcome"):
        journal.note(ended=result.episode.episode_id, reward=result.outcome.reward)


def _key(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


# --- With plain HTTP ------------------------------------------------------------------------------


class RefusedError(Exception):
    """An answer after which a retry is useless."""


def _pause(answer: httpx2.Response | None) -> float | None:
    """Return the seconds until a retry, or None if the answer is good.

    :raises RefusedError: a retry is useless.
    """
    if answer is None:
        return 0.05
    if answer.status_code == 200:
        return None
    if answer.status_code in {429, 502, 503, 504} and "retry-after" in answer.headers:
        return float(answer.headers["retry-after"])
    raise RefusedError(f"{answer.status_code}: {answer.text}")


def answered(send: Callable[[], httpx2.Response]) -> httpx2.Response:
    """Return the answer to a request that may be repeated.

    :raises RefusedError: the server refuses it.
    :raises TimeoutError: there were only outages for too long.
    """
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while True:
        why = "no answer"
        try:
            answer = send()
        except httpx2.TransportError as error:
            answer, why = None, repr(error)
        if (pause := _pause(answer)) is None:
            assert answer is not None
            return answer
        if time.monotonic() > deadline:
            raise TimeoutError(why if answer is None else answer.text)
        time.sleep(pause)


@contextmanager
def _pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(CONCURRENCY) as pool:
        yield pool


@dataclass(frozen=True)
class Plain:
    """A client that was written with only the protocol's documentation."""

    http: httpx2.Client
    journal: Journal
    tag: str

    def ask(self, method: str, path: str, **json_body: object) -> dict[str, Any]:
        """Send a request with the client's token, and repeat it through outages."""
        found: dict[str, Any] = answered(
            lambda: self.http.request(method, path, json=json_body or None, headers=_key(TOKEN))
        ).json()
        return found

    def episode(self, task_id: str, kind: str) -> None:
        """Roll out an episode, and another one if it is lost."""
        for attempt in range(RETRIES + 1):
            try:
                grant = self.ask(
                    "POST",
                    "/v1/episodes",
                    task_id=task_id,
                    kind=kind,
                    tag=self.tag,
                    lease_seconds=LEASE_SECONDS,
                    wait_seconds=10.0,
                    claim_id=secrets.token_urlsafe(24),
                )
                self.walk(task_id, grant)
            except RefusedError as error:
                print(f"{task_id}, attempt {attempt}: {error}", file=sys.stderr, flush=True)
            else:
                return

    def walk(self, task_id: str, grant: dict[str, Any]) -> None:
        """Make the calls of an episode and report its outcome."""
        make_calls(self.http, self.journal, task_id, grant["base_url"], grant["api_key"])
        reward = reward_of(grant["episode_id"])
        self.ask("POST", f"/v1/episodes/{grant['episode_id']}/end", reward=reward)
        self.journal.note(ended=grant["episode_id"], reward=reward)

    def roll_out(self, ids: list[str], kind: str) -> None:
        """Roll out all episodes of some tasks."""
        with _pool() as pool:
            wanted = [task_id for task_id in ids for _ in range(EPISODES_PER_TASK)]
            list(pool.map(lambda task_id: self.episode(task_id, kind), wanted))

    def wait_for_step(self, step: int) -> None:
        """Wait until a step is trained, and roll out tasks that its batch lacks."""
        deadline = time.monotonic() + GIVE_UP_SECONDS
        while (status := self.ask("GET", "/v1/status"))["step"] < step:
            if any(finding["code"] in STARVED for finding in status["findings"]):
                self.journal.note(more=step)
                self.roll_out([self.journal.task_id()], "train")
            if time.monotonic() > deadline:
                raise TimeoutError(f"step {step} does not come: {json.dumps(status)}")
            time.sleep(0.2)


def run_plain(url: str, journal: Journal, tag: str, kinds: list[str]) -> None:
    """Run rounds with plain HTTP."""
    with httpx2.Client(base_url=url, timeout=60.0) as http:
        plain = Plain(http, journal, tag)
        for ids in journal.rounds():
            step = plain.ask("GET", "/v1/status")["step"] + 1
            for kind in kinds:
                plain.roll_out(ids, kind)
            plain.wait_for_step(step)


def main(kind: str, url: str, journal: str, started: str, tag: str, kinds: str) -> None:
    """Run one client until it is killed or finished."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    notes = Journal(Path(journal), float(started))
    if kind == "async":
        asyncio.run(run_async(url, notes, tag, kinds.split(",")))
    else:
        {"runner": run_runner, "plain": run_plain}[kind](url, notes, tag, kinds.split(","))


if __name__ == "__main__":
    main(*sys.argv[1:])
