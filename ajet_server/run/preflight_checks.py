"""The checks of a preflight: pure functions of a batch and its rehearsal."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress

from ajet_core.interfaces import SealReport, StepReport
from ajet_core.protocol import PreflightCheck, PreflightConfig
from ajet_core.timeline import Call, TrainBatch
from ajet_server.batches.batch_findings import BatchFault
from ajet_server.store.call_metadata import CALLS_UNREAD, DRIFT_TOKENS, ECHO_FIELDS

_QUARTERS = 4
_WORD = re.compile(r"\w+")
# A mean over fewer tokens is not meaningful.
_TELLING = 16
# Below a tenth of the limit, a gap is rounding, however it depends on the position.
_ROUNDING, _UNEVEN = 0.1, 4.0
_NO_SIGNAL: tuple[BatchFault, ...] = ("empty", "no_signal")
_SEE_REWARDS = "the check `rewards` says why"


@dataclass(frozen=True, slots=True)
class Longest:
    """Whether the longest episodes fit into the trainer's memory.

    :param seen: tokens of the batch's longest call.
    :param limit: the most tokens that the run allows for an episode; None without limit.
    :param tried: tokens of the longest episode that was computed.
    :param failure: why a longer one could not be computed, "" if none failed.
    """

    seen: int
    limit: int | None
    tried: int = 0
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The input of the checks.

    :param calls: of the batch's episodes.
    :param faults: what is wrong with the batch, by kind.
    :param rehearsal: None if the trainer cannot rehearse, or failed.
    :param refusal: why it failed.
    :param uses_rewards: whether the trainer learns from advantages.
    :param dropout: whether it computes logprobs with dropout, which engines never do.
    :param clients: the client of each episode, by episode id.
    :param lost: by role, the number of messages that their prompts do not contain.
    """

    batch: TrainBatch
    calls: Sequence[Call]
    faults: Mapping[BatchFault, str]
    seal: SealReport
    longest: Longest
    rehearsal: StepReport | None = None
    refusal: str = ""
    policy_version: int = 0
    uses_rewards: bool = True
    dropout: bool = False
    clients: Mapping[str, str] = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)

    @property
    def has_no_signal(self) -> bool:
        """Whether the trainer has nothing to learn from the batch, and so does not compute it."""
        return self.uses_rewards and not self.faults.keys().isdisjoint(_NO_SIGNAL)

    def of_client(self, client: str) -> Evidence:
        """Return the evidence that one client's calls give."""
        episodes = {episode for episode, owner in self.clients.items() if owner == client}
        theirs = [
            self.batch.episodes[call.episode].episode_id in episodes for call in self.batch.calls
        ]
        rehearsal = self.rehearsal and replace(
            self.rehearsal, logprobs=list(compress(self.rehearsal.logprobs, theirs))
        )
        return replace(
            self,
            batch=replace(self.batch, calls=list(compress(self.batch.calls, theirs))),
            calls=[call for call in self.calls if call.episode_id in episodes],
            rehearsal=rehearsal,
        )


def check_all(evidence: Evidence, config: PreflightConfig) -> list[PreflightCheck]:
    """Run all checks, in the order of the report.

    What only one of several clients shows in its calls is a warning: a client must not be able to
    stop a run that others share.
    """
    return [
        _of_all_clients(evidence, lambda part: logprobs_agree(part, config.max_logprob_gap)),
        weights_are_proven(evidence.seal),
        template_round_trips(evidence.calls, evidence.lost),
        _of_all_clients(evidence, lambda part: tool_calls_are_read(part.calls)),
        longest_fits(evidence),
        rewards_differ_in_groups(evidence),
    ]


def _of_all_clients(
    evidence: Evidence, check: Callable[[Evidence], PreflightCheck]
) -> PreflightCheck:
    """Run a check; a failure that only one of several clients shows becomes a warning."""
    whole = check(evidence)
    clients = sorted(set(evidence.clients.values()))
    if whole.verdict != "fail" or len(clients) < 2:
        return whole
    failing = [client for client in clients if check(evidence.of_client(client)).verdict == "fail"]
    if len(failing) != 1:
        return whole
    result = f"{whole.found}; only the calls of client {failing[0]} show this"
    return whole.model_copy(update={"verdict": "warn", "found": result})


def logprobs_agree(evidence: Evidence, limit: float) -> PreflightCheck:
    """Check that engine and trainer agree on the logprobs of sampled tokens at every position.

    :param limit: of the mean absolute difference, in nats.
    """
    name = "logprobs"
    if evidence.refusal and not evidence.longest.failure:
        return PreflightCheck(
            name=name,
            verdict="fail",
            found=f"the trainer refuses the batch: {evidence.refusal}",
            way_out="compare the model, dtype and temperature of engine and trainer",
        )
    gaps = _gaps(evidence)
    if len(gaps) < _TELLING:
        unmeasured = not gaps and evidence.has_no_signal
        return PreflightCheck(
            name=name,
            verdict="warn",
            found=(
                "not compared, because the batch has no signal"
                if unmeasured
                else f"only {len(gaps)} tokens could be compared between engine and trainer"
            ),
            way_out=(
                _SEE_REWARDS
                if unmeasured
                else "use a trainer that can rehearse batches and report their logprobs"
            ),
        )
    gaps.sort()
    mean = _mean([gap for _, gap in gaps])
    size = math.ceil(len(gaps) / _QUARTERS)
    parts = [gaps[start : start + size] for start in range(0, len(gaps), size)]
    means = [_mean([gap for _, gap in part]) for part in parts]
    by_position = ", ".join(
        f"{value:.2g} up to token {part[-1][0]}" for part, value in zip(parts, means, strict=True)
    )
    result = f"mean difference {mean:.2g} nats over {len(gaps)} tokens ({by_position})"
    if evidence.dropout:
        return PreflightCheck(
            name=name,
            verdict="pass",
            found=(
                f"{result}; no limit applies because the trainer computes its logprobs with dropout"
            ),
        )
    if mean > limit or max(means) > limit:
        grows = max(means) > _UNEVEN * min(means)
        return PreflightCheck(
            name=name,
            verdict="fail",
            found=f"{result}, above preflight.max_logprob_gap {limit:g}",
            way_out=(
                "the difference depends on the position: compare the rope scaling, sliding "
                "window and maximum length of engine and trainer"
                if grows
                else "compare the weights, dtype, quantisation and attention kernels of engine "
                "and trainer"
            ),
        )
    if max(means) > _ROUNDING * limit and max(means) > _UNEVEN * min(means):
        return PreflightCheck(
            name=name,
            verdict="warn",
            found=f"{result}; it varies with the position",
            way_out="compare the rope scaling and attention kernels of engine and trainer",
        )
    return PreflightCheck(name=name, verdict="pass", found=result)


def weights_are_proven(seal: SealReport) -> PreflightCheck:
    """Check that the engine has proven that it serves the trainer's weights."""
    name = "seal"
    if seal.breaches:
        return PreflightCheck(
            name=name,
            verdict="warn",
            found="; ".join(seal.breaches),
            way_out=(
                "the engine's servers were replaced; check their logs, and the disk or network "
                "between trainer and engine"
            ),
        )
    if seal.proof == "none" and seal.noise:
        return PreflightCheck(
            name=name,
            verdict="warn",
            found=(
                "the engine's logprobs of a probe agree with the trainer's up to noise of "
                f"{seal.noise:.2g} nats, which does not yet prove that the weights of policy "
                f"version {seal.policy_version} are served"
            ),
            way_out=(
                "larger updates are proven (sealed_servers of each step); an engine and a "
                "trainer that report checksums prove every update (docs/seal.md)"
            ),
        )
    if seal.proof == "none":
        return PreflightCheck(
            name=name,
            verdict="warn",
            found=(
                f"nothing proves that the weights of policy version {seal.policy_version} are "
                "served"
            ),
            way_out="use an engine and a trainer that report checksums (docs/seal.md)",
        )
    what = {
        "shared": "the engine serves the trainer's own tensors",
        "checksums": f"{seal.servers} server(s) proved {seal.tensors} tensors by checksums",
        "probe": f"{seal.servers} server(s) followed the trainer's logprobs of a probe, which "
        f"changed by {seal.change:.2g} nats above noise of {seal.noise:.2g}",
    }
    return PreflightCheck(name=name, verdict="pass", found=what[seal.proof])


def lost_messages(calls: Sequence[Call], decode: Callable[[Sequence[int]], str]) -> Counter[str]:
    """Count, by role, the agent's messages that their prompts do not contain.

    Templates may change white space and escape characters, so words are compared: a message is
    lost if most of its words are missing.

    :param decode: returns the text of token ids.
    """
    lost: Counter[str] = Counter()
    for call in calls:
        if not call.messages:
            continue
        prompt = call.prompt_ids
        # The first may begin with tokens that an earlier prompt has, too.
        start = min(len(prompt) - len(call.suffix_ids), call.messages[0].start)
        words = frozenset(_WORD.findall(decode(prompt[start:])))
        for placed in call.messages:
            text = placed.text
            # What the model wrote is kept as tokens, and templates may drop its reasoning.
            own = set(_WORD.findall(text.content)) if text.role != "assistant" else set()
            if 2 * len(own & words) < len(own):
                lost[text.role] += 1
    return lost


def template_round_trips(calls: Sequence[Call], lost: Mapping[str, int]) -> PreflightCheck:
    """Check that the chat template reproduces the agent's messages, and answers as sampled.

    :param lost: as `Evidence.lost`.
    """
    name = "template"
    drifted = [call for call in calls if DRIFT_TOKENS in call.metadata]
    echoed = [call for call in calls if ECHO_FIELDS in call.metadata]
    if not calls:
        return PreflightCheck(
            name=name,
            verdict="fail",
            found="the agent made no call",
            way_out="make the agent use the base_url and api_key of its episode",
        )
    if lost:
        roles = ", ".join(f"{count} of role {role!r}" for role, count in sorted(lost.items()))
        return PreflightCheck(
            name=name,
            verdict="fail",
            found=f"the prompts lack messages that the agent sent: {roles}",
            way_out=(
                "the chat template drops them: set model.renderer to the model's own renderer, or "
                "correct the chat template in the model directory; `ajet inspect` shows the calls"
            ),
        )
    if drifted:
        return PreflightCheck(
            name=name,
            verdict="warn",
            found=(
                f"the template would write {len(drifted)} of {len(calls)} answers with different "
                "tokens than were sampled; the sampled tokens are kept, and a conversation that "
                "cannot be continued exactly becomes a branch"
            ),
            way_out=(
                "set model.renderer to the model's own renderer; `ajet inspect` shows the calls"
            ),
        )
    result = f"the template writes all {len(calls)} answers with the sampled tokens"
    if echoed:
        fields = sorted(
            {field for call in echoed for field in call.metadata[ECHO_FIELDS].split(",")}
        )
        result += (
            f"; the agent sent back {len(echoed)} of them in another form "
            f"({', '.join(fields)}), and they are kept as sampled"
        )
    return PreflightCheck(name=name, verdict="pass", found=result)


def tool_calls_are_read(calls: Sequence[Call]) -> PreflightCheck:
    """Check that the model's tool calls reach the agent as calls where it offers tools."""
    name = "tools"
    unread = sum(CALLS_UNREAD in call.metadata for call in calls)
    if unread:
        return PreflightCheck(
            name=name,
            verdict="fail",
            found=(
                f"{unread} of {len(calls)} calls offer tools, but receive the model's tool calls "
                "as text: no known parser can read the calls that the chat template writes"
            ),
            way_out=(
                "set model.renderer to the model family whose format the model was trained on, "
                "or add a chat template that writes calls in a known format to the model "
                "directory"
            ),
        )
    return PreflightCheck(
        name=name,
        verdict="pass",
        found="the model's tool calls are parsed in all calls that offer tools",
    )


def longest_fits(evidence: Evidence) -> PreflightCheck:
    """Check that the longest episode fits into the trainer's memory."""
    name, longest = "memory", evidence.longest
    if longest.failure:
        most = max(longest.seen, longest.tried)
        return PreflightCheck(
            name=name,
            verdict="fail",
            found=longest.failure,
            way_out=(
                "lower model.max_context or timelines.max_tokens (the longest call so far has "
                f"{most} tokens), or follow the trainer's advice"
            ),
        )
    if not longest.tried and evidence.has_no_signal:
        return PreflightCheck(
            name=name,
            verdict="warn",
            found="unknown, because the batch has no signal and was not computed",
            way_out=_SEE_REWARDS,
        )
    if not longest.tried:
        return PreflightCheck(
            name=name,
            verdict="warn",
            found="unknown, because no episode was computed",
            way_out="use a trainer that can rehearse batches",
        )
    budget = (evidence.rehearsal.metrics if evidence.rehearsal else {}).get("oom_retries", 0.0)
    retried = f"; the token budget was lowered {budget:.0f} times" if budget else ""
    if longest.limit is not None and longest.tried < longest.limit:
        return PreflightCheck(
            name=name,
            verdict="warn",
            found=(
                f"{longest.tried} tokens fit{retried}; longer episodes, up to the limit of "
                f"{longest.limit}, were not tried"
            ),
            way_out="set model.max_context or timelines.max_tokens to what your episodes need",
        )
    limit = (
        ""
        if longest.limit is not None
        else "; model.max_context is not set, so longer episodes are possible"
    )
    return PreflightCheck(
        name=name, verdict="pass", found=f"{longest.tried} tokens fit{retried}{limit}"
    )


def rewards_differ_in_groups(evidence: Evidence) -> PreflightCheck:
    """Check that episodes of one task have different rewards, so that there is a signal."""
    name, faults = "rewards", evidence.faults
    if not evidence.uses_rewards:
        return PreflightCheck(
            name=name, verdict="pass", found="the trainer does not learn from rewards"
        )
    for fault in _NO_SIGNAL:
        if fault in faults:
            cause, _, advice = faults[fault].rpartition(": ")
            return PreflightCheck(name=name, verdict="fail", found=cause, way_out=advice)
    groups = {episode.group for episode in evidence.batch.episodes}
    if "flat" in faults:
        return PreflightCheck(
            name=name,
            verdict="warn",
            found=faults["flat"],
            way_out='set batch.full_by to "differing_tasks", or choose other tasks',
        )
    return PreflightCheck(
        name=name,
        verdict="pass",
        found=f"rewards differ within at least half of the {len(groups)} tasks",
    )


def _gaps(evidence: Evidence) -> list[tuple[int, float]]:
    """Return (position, absolute difference) for the tokens that the present weights sampled."""
    if evidence.rehearsal is None:
        return []
    by_id = {call.call_id: call for call in evidence.calls}
    gaps = []
    for call, logprobs in zip(evidence.batch.calls, evidence.rehearsal.logprobs, strict=False):
        length = by_id[call.call_id].length if call.call_id in by_id else len(call.logprobs)
        rows = zip(call.behaviour, logprobs, call.policy_versions, strict=False)
        first = length - len(call.logprobs)
        gaps += [
            (first + number, abs(ours - theirs))
            for number, (ours, theirs, version) in enumerate(rows)
            if version == evidence.policy_version
        ]
    return gaps


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
