"""The input of a trainer: calls with their advantages, and token trees to compute them on."""

from __future__ import annotations

from dataclasses import dataclass, field

from ajet_core.timeline.call import Call
from ajet_core.timeline.sampled_from import SampledFrom

NO_VERSION = -1


@dataclass(frozen=True, slots=True)
class TrainEpisode:
    """One finished episode of a batch.

    :param group: episodes of one group are rollouts of the same task and share a baseline.
    :param reward: the reward that the client reported.
    :param call_rewards: rewards of single calls, by call id, in addition to `reward`.
    :param agent_rewards: rewards of agents, by agent name; they replace `reward` for their calls.
    """

    episode_id: str
    group: str
    reward: float
    tag: str = ""
    call_rewards: dict[str, float] = field(default_factory=dict)
    agent_rewards: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TrainCall:
    """One model call whose T sampled tokens are trained.

    :param episode: index into `TrainBatch.episodes`.
    :param advantage: advantage of each of its tokens, see `ajet_core.timeline.credit`.
    :param temperature: > 0; trainers divide their logits by it before they compare logprobs. 1.0
        for a greedy call, whose logprobs are those of the undivided logits.
    :param logprobs: [T] behaviour logprobs, as `Call.logprobs`.
    :param policy_versions: [T] version of the weights that sampled each token.
    :param agent: name of the agent that made the call, "" if unknown.
    :param sampled_from: as `Call.sampled_from`. A trainer with the capability `sampled_from` trains
        this distribution, with its logprobs as the behaviour; others ignore it.
    """

    call_id: str
    episode: int
    advantage: float
    temperature: float
    logprobs: list[float]
    policy_versions: list[int]
    agent: str = ""
    sampled_from: SampledFrom | None = None

    @property
    def behaviour(self) -> list[float]:
        """[T] logprobs under the distribution that the tokens were sampled from, where known."""
        return self.logprobs if self.sampled_from is None else self.sampled_from.logprobs

    @classmethod
    def of(cls, call: Call, episode: int, advantage: float) -> TrainCall:
        """Extract the training data of `call`."""
        return cls(
            call_id=call.call_id,
            episode=episode,
            advantage=advantage,
            temperature=call.temperature if call.temperature > 0 else 1.0,
            logprobs=call.logprobs,
            policy_versions=call.policy_versions,
            agent=call.agent,
            sampled_from=call.sampled_from,
        )


@dataclass(frozen=True, slots=True)
class TrainSpan:
    """Tokens of a segment that a call sampled and that are trained for it.

    Several spans may cover the same tokens, if several calls sampled them. Each adds its own loss.

    :param offset: offset of the first token in `TrainSegment.token_ids`.
    :param call: index into `TrainBatch.calls`.
    :param start: offset of the first token in the call's sampled tokens.
    :param length: number of tokens, >= 1.
    """

    offset: int
    call: int
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class TrainSegment:
    """A run of N tokens that is computed once, after the tokens of its ancestors.

    The last token of its parent gives the logits for its first. No span covers that of a root.

    :param parent: index in `TrainTree.segments` of the earlier one that it continues; -1: a root.
    :param token_ids: [N], N >= 1.
    """

    parent: int
    token_ids: list[int]
    spans: list[TrainSpan] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TrainTree:
    """Segments that share context: one root, and segments that each continue an earlier one.

    A tree of one segment is a linear sequence.

    :ivar tokens: number of computed tokens.
    """

    segments: list[TrainSegment]

    @property
    def tokens(self) -> int:
        """The number of computed tokens."""
        return sum(len(segment.token_ids) for segment in self.segments)

    @property
    def tokens_trained(self) -> int:
        """The number of tokens with a loss; a token sampled by two calls counts twice."""
        return sum(span.length for segment in self.segments for span in segment.spans)


@dataclass(frozen=True, slots=True)
class TrainSequence:
    """A linear sequence of T tokens with masks, for trainers that do not support trees.

    :param episode: index into `TrainBatch.episodes`.
    :param token_ids: [T].
    :param loss_mask: [T] True where the token was sampled and is trained in this sequence.
    :param behaviour_logprobs: [T] as `TrainCall.logprobs`; 0.0 where `loss_mask` is False.
    :param advantages: [T] 0.0 where `loss_mask` is False.
    :param temperatures: [T] 1.0 where `loss_mask` is False.
    :param policy_versions: [T] -1 where `loss_mask` is False.
    """

    episode: int
    token_ids: list[int]
    loss_mask: list[bool]
    behaviour_logprobs: list[float]
    advantages: list[float]
    temperatures: list[float]
    policy_versions: list[int]


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """The input of one training step.

    Every sampled token of every call is trained exactly once: by one span of one tree. (The very
    first token of a path has no context and is not trained.) A trainer whose
    `TrainerCapabilities.trees` is False receives trees of one segment whose spans do not overlap.

    :param tokens_raw: number of tokens of all calls if each is a separate sample.
    """

    batch_id: str
    step: int
    episodes: list[TrainEpisode]
    calls: list[TrainCall]
    trees: list[TrainTree]
    tokens_raw: int

    @property
    def sequences(self) -> list[TrainSequence]:
        """The trees as sequences with masks.

        :raises ValueError: a tree has several segments, or spans overlap or have several episodes.
        """
        return [self._sequence(number, tree) for number, tree in enumerate(self.trees)]

    def _sequence(self, number: int, tree: TrainTree) -> TrainSequence:
        if len(tree.segments) != 1:
            raise ValueError(
                f"batch {self.batch_id}: tree {number} has {len(tree.segments)} segments, so "
                "it is not a linear sequence"
            )
        (segment,) = tree.segments
        size = len(segment.token_ids)
        episodes = {self.calls[span.call].episode for span in segment.spans}
        if len(episodes) != 1:
            raise ValueError(
                f"batch {self.batch_id}: tree {number} holds {len(episodes)} episodes "
                "instead of one"
            )
        sequence = TrainSequence(
            episode=episodes.pop(),
            token_ids=segment.token_ids,
            loss_mask=[False] * size,
            behaviour_logprobs=[0.0] * size,
            advantages=[0.0] * size,
            temperatures=[1.0] * size,
            policy_versions=[NO_VERSION] * size,
        )
        for span in segment.spans:
            call, place = self.calls[span.call], slice(span.offset, span.offset + span.length)
            taken = slice(span.start, span.start + span.length)
            if any(sequence.loss_mask[place]):
                raise ValueError(f"batch {self.batch_id}: spans of tree {number} overlap")
            sequence.loss_mask[place] = [True] * span.length
            sequence.behaviour_logprobs[place] = call.logprobs[taken]
            sequence.advantages[place] = [call.advantage] * span.length
            sequence.temperatures[place] = [call.temperature] * span.length
            sequence.policy_versions[place] = call.policy_versions[taken]
        return sequence
