"""A run as a server records it: a real tokenizer, conversations in ChatML, a SQLite file."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from ajet_core.interfaces import (
    BatchRecord,
    CallScore,
    EpisodeRecord,
    RunRecord,
    SampleStore,
    StepRecord,
    WorkerContext,
)
from ajet_core.protocol import ComponentChoice, ModelConfig, RolloutConfig, RunConfig
from ajet_core.timeline import Call, MessageText, PlacedMessage
from ajet_core.timeline.radix import common_prefix
from ajet_server.embedded.settings import SqliteStoreSettings, TrieMergerSettings
from ajet_server.embedded.trie import MergePolicy
from ajet_server.embedded.trie_merger import TrieMerger
from ajet_server.observe.run_merger import RunMerger
from ajet_server.store.call_metadata import IGNORED
from ajet_server.store.sqlite_store import SqliteStore
from ajet_testing.suites.samples import make_episode

HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"><!-- \u202e \x1b[2J"
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def make_model_dir(directory: Path) -> Path:
    """Make a model directory whose byte-level tokenizer splits some characters into tokens."""
    directory.mkdir(parents=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        ["user assistant system tool hello there, how are you today? the answer is what it was"]
        * 4,
        trainers.BpeTrainer(
            vocab_size=500,
            special_tokens=SPECIALS,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


def trie(policy: MergePolicy = "exact") -> RunMerger:
    """The merger of a run that has the usual one."""
    settings = TrieMergerSettings(policy=policy)
    return RunMerger("trie", TrieMerger(settings, WorkerContext(Path())))


def said(role: str, content: str, *, name: str = "") -> MessageText:
    """One message."""
    return MessageText(role, content, name=name)


@dataclass(slots=True)
class Recording:
    """Episodes in the making; `write` puts them into a store."""

    model_dir: Path
    merger: ComponentChoice = field(default_factory=lambda: ComponentChoice(name="trie"))
    episodes: list[EpisodeRecord] = field(default_factory=list)
    calls: dict[str, list[Call]] = field(default_factory=dict)
    steps: list[tuple[int, list[str]]] = field(default_factory=list)
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    unscored: set[str] = field(default_factory=set)
    untrained_agents: tuple[str, ...] = ()
    _tokenizer: Tokenizer = field(init=False)
    _random: random.Random = field(default_factory=lambda: random.Random(7))

    def __post_init__(self) -> None:
        self._tokenizer = Tokenizer.from_file(str(self.model_dir / "tokenizer.json"))

    def ids(self, text: str) -> list[int]:
        """Tokens of a text; special tokens spelled out in it become their ids."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def episode(self, episode_id: str, *, task: str = "task-1") -> str:
        """Begin an open episode."""
        self.episodes.append(replace(make_episode(episode_id), task_id=task, group=task))
        self.calls[episode_id] = []
        return episode_id

    def call(
        self,
        episode_id: str,
        messages: Sequence[MessageText],
        answer: str,
        *,
        agent: str = "solver",
        finish: str = "stop",
        version: int = 3,
        tools: str = "",
        ignored: str = "",
    ) -> Call:
        """Record a call; it shares what it can with one of the calls before it."""
        made = self.calls[episode_id]
        prompt: list[int] = []
        placed = []
        for message in messages:
            start = len(prompt)
            prompt += self.ids(f"<|im_start|>{message.role}\n{message.content}<|im_end|>")
            placed.append(PlacedMessage(start, len(prompt), message))
            prompt += self.ids("\n")
        prompt += self.ids("<|im_start|>assistant\n")
        likely = [(common_prefix(call.token_ids, prompt, 0), call.index) for call in made[-3:]]
        shared, number = max(likely, default=(0, 0))
        base = made[number] if shared else None
        sampled = self.ids(answer + ("<|im_end|>" if finish == "stop" else ""))
        call = Call(
            call_id=f"{episode_id}-c{len(made)}",
            episode_id=episode_id,
            index=len(made),
            suffix_ids=prompt[shared:],
            sampled_ids=sampled,
            logprobs=[-self._random.expovariate(1.0) for _ in sampled],
            policy_versions=[version + (i > len(sampled) // 2) for i in range(len(sampled))],
            temperature=1.0,
            finish_reason=finish,
            base=base,
            shared=shared,
            agent=agent,
            created_at=1700000000.0 + len(made),
            messages=tuple(message for message in placed if message.end > shared),
            answer=None if finish == "abort" else MessageText("assistant", answer),
            tools=tools,
            metadata={IGNORED: ignored} if ignored else {},
        )
        made.append(call)
        return call

    def end(self, episode_id: str, reward: float, **changes: object) -> None:
        """End an episode."""
        self._replace(episode_id, state="ended", reward=reward, **changes)

    def abort(self, episode_id: str, reason: str) -> None:
        """Abort an episode."""
        self._replace(episode_id, state="aborted", reason=reason)

    def step(self, number: int, episode_ids: list[str], **metrics: float) -> None:
        """Train on episodes."""
        self.steps.append((number, episode_ids))
        self.metrics[number] = metrics

    def write(self, run_dir: Path) -> Path:
        """Write everything to the store of a run directory."""
        return asyncio.run(self.save(run_dir))

    async def save(self, run_dir: Path) -> Path:
        """The same, where a loop runs already."""
        store = SqliteStore(SqliteStoreSettings(), WorkerContext(run_dir))
        await store.open()
        await self.fill(store)
        await store.close()
        return run_dir

    async def fill(self, store: SampleStore) -> None:
        """Write everything to an open store."""
        config = RunConfig(
            model=ModelConfig(path=str(self.model_dir)),
            merger=self.merger,
            rollout=RolloutConfig(untrained_agents=self.untrained_agents),
        )
        await store.append(RunRecord("run-1", config.model_dump_json(), 1700000000.0, True))
        for episode in self.episodes:
            await store.append(replace(episode, state="open", reward=None, reason=""))
            for call in self.calls[episode.episode_id]:
                await store.append(call)
            if episode.state != "open":
                await store.append(episode)
        for number, ids in self.steps:
            await store.append(BatchRecord(f"batch-{number}", number, ids, 1700000100.0))
            scores = [score for each in ids for score in self._scores(each)]
            metrics = self.metrics.get(number, {})
            ended = 1700000200.0 + 10 * number
            await store.append(StepRecord(number, f"batch-{number}", metrics, ended, scores))

    def _scores(self, episode_id: str) -> list[CallScore]:
        reward = next(e.reward for e in self.episodes if e.episode_id == episode_id)
        return [
            CallScore(
                call.call_id,
                (reward or 0.0) - 0.5,
                # A store may keep them in float32.
                [round(1024 * (v + self._random.gauss(0, 0.02))) / 1024 for v in call.logprobs],
            )
            for call in self.calls[episode_id]
            if call.finish_reason != "abort" and call.call_id not in self.unscored
        ]

    def _replace(self, episode_id: str, **changes: object) -> None:
        for number, episode in enumerate(self.episodes):
            if episode.episode_id == episode_id:
                self.episodes[number] = replace(episode, **changes)  # type: ignore[arg-type]


def sample_recording(model_dir: Path) -> Recording:
    """Four episodes: one with a costly fork, one aborted, one open, one of another task.

    The first has a rewritten system message, an aborted call, a call that was not trained, and
    hostile text in a message, an answer, a name and a role.
    """
    recording = Recording(model_dir)
    first = recording.episode("ep-aaa1")
    system = said("system", "You are helpful. The time is 10:01." + " Be brief." * 20)
    messages = [system, said("user", "hello there, how are you today? \u00e9\U0001f600")]
    recording.call(first, messages, "I look: search('weather')", agent="planner")
    messages += [
        said("assistant", "I look: search('weather')"),
        said("tool", f"result {HOSTILE}", name=f"search{HOSTILE}"),
    ]
    recording.call(first, messages, f"the answer is {HOSTILE}", agent=f"<b>{HOSTILE}", version=4)
    messages[0] = said("system", "You are helpful. The time is 10:02." + " Be brief." * 20)
    messages += [said("assistant", "the answer"), said(f"user{HOSTILE}", "and now?")]
    recording.call(first, messages, "what it was", agent="planner", version=4)
    recording.call(first, messages, "what it", agent="planner", version=4, finish="abort")
    recording.call(first, [said("user", "another one")], "it was", agent="critic", version=4)
    recording.unscored.add("ep-aaa1-c4")
    recording.end(
        first, 1.0, call_rewards={"ep-aaa1-c0": 0.25}, agent_rewards={"critic": 0.5}, metadata={}
    )
    second = recording.episode("ep-aab2")
    recording.call(second, [said("user", "hello")], "it was", ignored="metadata,tools[1]")
    recording.end(second, 0.0)
    recording.step(1, [first, second])
    third = recording.episode("ep-bbb3")
    recording.call(third, [said("user", "hello")], "what", agent="")
    recording.abort(third, "the client went away")
    fourth = recording.episode("ep-ccc4", task="task-2")
    recording.call(fourth, [said("user", "what is it?")], "the answer is 42")
    return recording
