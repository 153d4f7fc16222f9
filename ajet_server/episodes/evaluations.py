"""Evaluation results by client, task set and step of the claim: bookkeeping only."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ajet_core.interfaces import EpisodeRecord
from ajet_core.pass_at import mean_pass_at
from ajet_core.protocol import Evaluation, EvaluationConfig
from ajet_core.timeline import Call
from ajet_server.averages import term
from ajet_server.store.evaluation_counts import EvaluationCount

# Limits on the memory that one client can use by inventing tasks and task sets.
_KEPT_TASKS = 100_000
_KEPT_EVALUATIONS = 1024
_SHOWN_IN_STATUS = 64


class EvaluationKey(NamedTuple):
    """Identifies the evaluation to which an episode counts."""

    client_id: str
    tag: str
    step: int


@dataclass(slots=True)
class _Tally:
    """The episodes of one key.

    :ivar tasks: by task, how many of its episodes ended, and how many of these passed.
    :ivar alike: how many tasks have each such pair of numbers; pass@k needs only these.
    """

    tasks: dict[str, tuple[int, int]] = field(default_factory=dict)
    alike: Counter[tuple[int, int]] = field(default_factory=Counter)
    episodes: int = 0
    mixed: int = 0
    aborted: int = 0
    open: int = 0
    reward_sum: float = 0.0

    def add(self, task_id: str, ended: int, passed: int) -> None:
        """Count episodes for pass@k."""
        before = self.tasks.get(task_id, (0, 0))
        now = (before[0] + ended, before[1] + passed)
        self.tasks[task_id] = now
        self.alike[now] += 1
        self.alike[before] -= 1
        if self.alike[before] <= 0:
            del self.alike[before]

    def shown(self, key: EvaluationKey, config: EvaluationConfig) -> Evaluation:
        """Return the results as an `Evaluation`."""
        return Evaluation(
            client_id=key.client_id,
            tag=key.tag,
            step=key.step,
            tasks=len(self.tasks),
            episodes=self.episodes,
            open=self.open,
            aborted=self.aborted,
            mixed=self.mixed,
            reward_mean=self.reward_sum / self.episodes if self.episodes else None,
            pass_at=mean_pass_at(self.alike, config.pass_at),
        )


class Evaluations:
    """The totals of all evaluations, at a cost per query that does not grow with their episodes.

    For each client, a limited number of the latest evaluations is kept, with a limited number of
    tasks in all of them together. Tasks beyond the limit are left out of pass@k.

    :ivar config: how the present run is evaluated.
    """

    def __init__(
        self, *, kept_tasks: int = _KEPT_TASKS, kept_evaluations: int = _KEPT_EVALUATIONS
    ) -> None:
        self._kept_tasks = kept_tasks
        self._kept_evaluations = kept_evaluations
        # By client; the evaluation that changed last is at the end.
        self._tallies: dict[str, OrderedDict[EvaluationKey, _Tally]] = {}
        self._tasks: Counter[str] = Counter()
        self._untold: dict[EvaluationKey, None] = {}
        self.config = EvaluationConfig()

    def begin(self, config: EvaluationConfig, counts: Sequence[EvaluationCount]) -> None:
        """Count all episodes again under `config`; open episodes stay open.

        :param counts: all episodes that are over, in order of policy version.
        """
        self.config = config
        still_open = [(k, t.open) for k, t in self._all() if t.open]
        self._tallies.clear()
        self._tasks.clear()
        self._untold.clear()
        for count in counts:
            key = EvaluationKey(count.client_id, count.tag, count.claim_version)
            tally = self._changing(key)
            if count.ended:
                self._add(key, tally, count.task_id, count.ended, count.passed)
            tally.mixed += count.mixed
            tally.reward_sum += count.reward_sum
            tally.aborted += count.aborted
        for key, number in still_open:
            self._changing(key).open = number

    def opened(self, record: EpisodeRecord) -> None:
        """Record an episode that was claimed, or is open after a restart."""
        if record.kind == "eval":
            self._changing(_key(record)).open += 1

    def finished(self, record: EpisodeRecord) -> None:
        """Record the outcome of an open episode."""
        if record.kind != "eval":
            return
        key = _key(record)
        tally = self._changing(key)
        tally.open -= 1
        if record.state == "ended" and record.reward is not None:
            self._add(key, tally, record.task_id, 1, int(record.reward >= self.config.pass_reward))
            # The reward may have been accepted under another limit of rewards, or none.
            tally.reward_sum += term(record.reward)
            tally.mixed += record.mixed
        else:
            tally.aborted += 1
        self._untold[key] = None

    def all(self) -> list[Evaluation]:
        """Return all evaluations that are kept, by client, task set and step."""
        return [tally.shown(key, self.config) for key, tally in sorted(self._all(), key=_by_key)]

    def latest(self) -> list[Evaluation]:
        """Return each task set's last step, limited per client to those that changed last."""
        shown: list[tuple[EvaluationKey, _Tally]] = []
        for tallies in self._tallies.values():
            last: dict[str, EvaluationKey] = {}
            for key in tallies:
                # Move the task set to the end, where the latest changes are.
                before = last.pop(key.tag, key)
                last[key.tag] = max(before, key)
            shown += [(key, tallies[key]) for key in list(last.values())[-_SHOWN_IN_STATUS:]]
        return [tally.shown(key, self.config) for key, tally in sorted(shown, key=_by_key)]

    def completed(self) -> list[Evaluation]:
        """Return the evaluations whose last open episode ended since the previous call."""
        completed = []
        for key in list(self._untold):
            tallies = self._tallies.get(key.client_id)
            tally = tallies.get(key) if tallies is not None else None
            if tally is not None and tally.open:
                continue
            del self._untold[key]
            if tally is not None:
                completed.append(tally.shown(key, self.config))
        return completed

    def _all(self) -> Iterator[tuple[EvaluationKey, _Tally]]:
        for tallies in self._tallies.values():
            yield from tallies.items()

    def _changing(self, key: EvaluationKey) -> _Tally:
        """Return the tally of `key` before a change, and mark it as the latest."""
        tallies = self._tallies.setdefault(key.client_id, OrderedDict())
        tally = tallies.setdefault(key, _Tally())
        tallies.move_to_end(key)
        if len(tallies) > self._kept_evaluations:
            self._forget_one(key)
        return tally

    def _add(self, key: EvaluationKey, tally: _Tally, task: str, ended: int, passed: int) -> None:
        tally.episodes += ended
        if task not in tally.tasks:
            while self._tasks[key.client_id] >= self._kept_tasks:
                if not self._forget_one(key):
                    # There is no room for the task: its episodes count in all but pass@k.
                    return
            self._tasks[key.client_id] += 1
        tally.add(task, ended, passed)

    def _forget_one(self, but: EvaluationKey) -> bool:
        """Forget the client's evaluation that has not changed for longest and has no open episodes.

        :return: False if there is none besides `but`.
        """
        tallies = self._tallies[but.client_id]
        for key, tally in tallies.items():
            if key != but and not tally.open:
                del tallies[key]
                self._tasks[but.client_id] -= len(tally.tasks)
                return True
        return False


def is_mixed(record: EpisodeRecord, calls: Sequence[Call]) -> bool:
    """Return whether weights other than those of the claim answered a call of an episode.

    Calls whose client disconnected do not count: no agent saw their responses.
    """
    return any(
        call.finish_reason != "abort" and set(call.policy_versions) - {record.claim_version}
        for call in calls
    )


def _key(record: EpisodeRecord) -> EvaluationKey:
    return EvaluationKey(record.client_id, record.tag, record.claim_version)


def _by_key(item: tuple[EvaluationKey, _Tally]) -> EvaluationKey:
    return item[0]
