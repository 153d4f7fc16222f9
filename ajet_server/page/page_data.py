"""The data of the page: episodes as compact JSON, with each token's text only once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from ajet_core.protocol import EpisodeTimelines, TimelineCall, TimelineFork, TimelineNode
from ajet_server.page.summary import EpisodeSummary
from ajet_server.page.text_diff import diff_parts
from ajet_server.page.token_texts import TokenTexts

MAX_TOKENS = 1_000_000
"""Tokens of a page, about 10 MiB; browsers open it within a second or two."""

_DIGITS = 6


@dataclass(slots=True)
class PageData:
    """Collects episodes until the page is full; of later ones only the numbers are kept.

    :param title: title of the page.
    :param run_id: id of the run; "" if none was configured.
    :param max_tokens: maximum number of tokens of the page.
    :ivar tokens_cut: number of tokens that were left out.
    """

    title: str
    run_id: str
    texts: TokenTexts
    max_tokens: int = MAX_TOKENS
    tokens_cut: int = 0
    _room: int = field(init=False)
    _episodes: list[dict[str, Any]] = field(default_factory=list)
    _ids: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._room = self.max_tokens

    def add(self, summary: EpisodeSummary, episode: EpisodeTimelines) -> None:
        """Add an episode."""
        nodes = [self._node(node) for node in episode.nodes]
        held = any(node["ids"] for node in nodes)
        cut = sum(node["cut"] for node in nodes)
        numbers = {call.call_id: number for number, call in enumerate(episode.calls)}
        self.tokens_cut += cut
        self._episodes.append(
            {
                "summary": summary.numbers,
                "tag": episode.tag,
                "reason": episode.reason,
                "agentRewards": episode.agent_rewards,
                "merger": episode.merger,
                "altered": episode.tokens_altered,
                "cut": cut,
                "nodes": nodes if held else [],
                "calls": [_call(call) for call in episode.calls] if held else [],
                "forks": [_fork(fork, numbers) for fork in episode.forks],
            }
        )

    def as_json(self, sentences: Sequence[str]) -> dict[str, Any]:
        """Return the data for JSON.

        :param sentences: descriptions of the costs of forks.
        """
        return {
            "title": self.title,
            "run": self.run_id,
            "textProblem": self.texts.problem,
            "tokensCut": self.tokens_cut,
            "maxTokens": self.max_tokens,
            "sentences": list(sentences),
            "vocabulary": dict(self._vocabulary()),
            "episodes": self._episodes,
        }

    def _node(self, node: TimelineNode) -> dict[str, Any]:
        ids = node.token_ids[: self._room]
        self._room -= len(ids)
        self._ids.update(ids)
        return {
            "parent": node.parent,
            "ids": ids,
            "cut": len(node.token_ids) - len(ids),
            "by": [[sampling.call, sampling.start] for sampling in node.samplings],
            "roles": [[role.start, role.end, role.role, role.name] for role in node.roles],
        }

    def _vocabulary(self) -> Iterable[tuple[str, str | list[int]]]:
        for token_id in sorted(self._ids):
            piece = self.texts.piece(token_id)
            if piece is not None:
                try:
                    yield str(token_id), piece.decode("utf-8")
                except UnicodeDecodeError:
                    # A part of a character: the page shows its bytes.
                    yield str(token_id), list(piece)


def _call(call: TimelineCall) -> dict[str, Any]:
    return {
        "id": call.call_id,
        "index": call.index,
        "agent": call.agent,
        "finish": call.finish_reason,
        "temperature": call.temperature,
        "end": call.end,
        "prompt": call.prompt_tokens,
        "logprobs": _rounded(call.logprobs),
        "trainer": _rounded(call.trainer_logprobs),
        "versions": [[version, len(list(run))] for version, run in groupby(call.policy_versions)],
        "advantage": None if call.advantage is None else round(call.advantage, _DIGITS),
        "reward": call.reward,
        "drift": call.drift_tokens,
        "echo": call.echo_fields,
        "ignored": call.ignored,
    }


def _fork(fork: TimelineFork, numbers: Mapping[str, int]) -> dict[str, Any]:
    return {
        "call": numbers[fork.call_id],
        "before": None if fork.before_call_id is None else numbers[fork.before_call_id],
        "kind": fork.kind,
        "message": fork.message,
        "role": fork.role,
        "field": fork.field,
        "shared": fork.shared,
        "recomputedTokens": fork.recomputed_tokens,
        "diff": diff_parts(fork.before, fork.after),
    }


def _rounded(values: Sequence[float | None]) -> list[float | None]:
    return [None if value is None else round(value, _DIGITS) for value in values]
