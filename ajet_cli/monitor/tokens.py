"""The tokens of an episode, as the viewer of the live page has them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from ajet_cli.monitor.layout import Column, Glyphs, Line, paragraph
from ajet_cli.words import MISSING, number

COLUMNS = (
    Column("position", 8, right=True),
    Column("token"),
    Column("role", 9),
    Column("mask", 8),
    Column("engine", 8, right=True),
    Column("trainer", 8, right=True),
    Column("advantage", 9, right=True, keep=False),
    Column("policy", 6, right=True, keep=False),
)


_MASKS = {"context": "context", "sampled": "sampled, not trained", "trained": "sampled, trained"}


class ViewedNode(BaseModel):
    """A run of tokens of the tree, of which it has those of `ids`.

    :param parent: -1 for none.
    :param cut: tokens that were left out at the end.
    :param by: call and offset in its sampled tokens, for each call that sampled this run.
    :param roles: start, end, role and name of each message.
    """

    parent: int
    ids: list[int]
    cut: int
    by: list[tuple[int, int]]
    roles: list[tuple[int, int, str, str]]


class ViewedCall(BaseModel):
    """A model call.

    :param end: the node in which it ends.
    :param logprobs: [T] of its T sampled tokens, by the engine.
    :param trainer: [T] by the trainer; empty if it was not trained.
    :param versions: policy version and number of tokens of each stretch.
    :param advantage: None if it was not trained.
    """

    id: str
    index: int
    agent: str
    finish: str
    end: int
    prompt: int
    temperature: float | None
    logprobs: list[float | None]
    trainer: list[float | None]
    versions: list[tuple[int, int]]
    advantage: float | None
    reward: float | None
    drift: int = 0
    echo: str = ""
    ignored: str = ""

    def policy(self, at: int) -> int | None:
        """Return the policy version that sampled a token."""
        for version, length in self.versions:
            if at < length:
                return version
            at -= length
        return None


class ViewedEpisode(BaseModel):
    """An episode; without nodes if it has no call that ended."""

    nodes: list[ViewedNode] = Field(default_factory=list)
    calls: list[ViewedCall] = Field(default_factory=list)
    cut: int = 0


class ViewedTokens(BaseModel):
    """Answer of ``GET /v1/timelines/{episode_id}/page``.

    :param text_problem: why tokens have no texts; "" if they have.
    :param vocabulary: text of each token id, or the bytes of a part of a character.
    """

    model_config = ConfigDict(populate_by_name=True)

    text_problem: str = Field(alias="textProblem")
    vocabulary: dict[int, str | list[int]]
    episodes: list[ViewedEpisode]

    @property
    def calls(self) -> list[ViewedCall]:
        """The calls of the episode, without those that were aborted."""
        return self.episodes[0].calls if self.episodes else []


@dataclass(frozen=True, slots=True)
class TokenSampling:
    """What a call says of a token that it sampled."""

    call: ViewedCall
    engine: float | None
    trainer: float | None
    policy: int | None


class Timeline:
    """The tokens of the timeline that a call ends in, from the first one.

    :param call: index in `ViewedEpisode.calls`.
    """

    def __init__(self, viewed: ViewedTokens, call: int) -> None:
        self.episode = viewed.episodes[0]
        self._vocabulary = viewed.vocabulary
        chain: list[ViewedNode] = []
        at = self.episode.calls[call].end
        while at >= 0:
            chain.append(self.episode.nodes[at])
            at = chain[-1].parent
        self._nodes = chain[::-1]
        self._starts = [0]
        for node in self._nodes:
            self._starts.append(self._starts[-1] + len(node.ids))
        self.cut = sum(node.cut for node in self._nodes)

    def __len__(self) -> int:
        return self._starts[-1]

    def sampled(self) -> list[int]:
        """Return the positions at which calls begin to sample."""
        return [
            start
            for node, start in zip(self._nodes, self._starts, strict=False)
            if node.ids and any(offset == 0 for _, offset in node.by)
        ]

    def first_of(self, call: int) -> int:
        """Return the position of the first token that a call sampled; 0 if it has none here."""
        for node, start in zip(self._nodes, self._starts, strict=False):
            if (call, 0) in node.by:
                return start
        return 0

    def row(self, position: int, glyphs: Glyphs) -> list[str]:
        """Return the cells of a token for `COLUMNS`."""
        node, at = self._place(position)
        samplings = self._samplings(node, at)
        by = samplings[0] if samplings else None
        return [
            f"{position:,}",
            self.text(node.ids[at], glyphs),
            glyphs.text(_role(node, at)[0]) or MISSING,
            mask(samplings),
            _logprob(by.engine) if by else "",
            _logprob(by.trainer) if by else "",
            _signed(by.call.advantage) if by else "",
            str(by.policy) if by and by.policy is not None else "",
        ]

    def details(self, position: int, width: int, glyphs: Glyphs) -> list[Line]:
        """Return all that is known about a token."""
        node, at = self._place(position)
        token = node.ids[at]
        role, name = _role(node, at)
        samplings = self._samplings(node, at)
        about = [f"token {token}", f"text {self.text(token, glyphs)}"]
        about.append(f"role {glyphs.text(role)}" if role else "role none (template)")
        about += [f"name {glyphs.text(name)}"] * bool(name)
        about.append(_MASKS[mask(samplings)])
        lines = paragraph([(", ".join(about), "strong")], width, "  ")
        for by in samplings:
            lines += paragraph([(_said(by, glyphs), "")], width, "  ")
        return lines

    def text(self, token: int, glyphs: Glyphs) -> str:
        """Return a token's text in quotes, or its bytes, or its id if it has no text."""
        text = self._vocabulary.get(token)
        if text is None:
            return f"<{token}>"
        if isinstance(text, list):
            return "bytes " + " ".join(f"{byte:02x}" for byte in text)
        return f'"{glyphs.text(text)}"'

    def _place(self, position: int) -> tuple[ViewedNode, int]:
        at = bisect_right(self._starts, position) - 1
        # Nodes without tokens start where the next one does.
        at = min(at, len(self._nodes) - 1)
        return self._nodes[at], position - self._starts[at]

    def _samplings(self, node: ViewedNode, at: int) -> list[TokenSampling]:
        samplings = []
        for number_, offset in node.by:
            call, index = self.episode.calls[number_], offset + at
            samplings.append(
                TokenSampling(
                    call,
                    _at(call.logprobs, index),
                    _at(call.trainer, index),
                    call.policy(index),
                )
            )
        return samplings


def mask(samplings: Sequence[TokenSampling]) -> str:
    """Return whether a token is context, was sampled and not trained, or was trained."""
    if not samplings:
        return "context"
    return "trained" if any(by.call.advantage is not None for by in samplings) else "sampled"


def _said(by: TokenSampling, glyphs: Glyphs) -> str:
    call = by.call
    said = [
        f"call {call.index} of {glyphs.text(call.agent) or 'an unnamed agent'}",
        f"policy {MISSING if by.policy is None else by.policy}",
        f"logprob of the engine {_logprob(by.engine)}",
        f"of the trainer {_logprob(by.trainer)}",
    ]
    if by.engine is not None and by.trainer is not None:
        difference = by.trainer - by.engine
        said.append(f"difference {difference:+.6f}, ratio {math.exp(min(difference, 700)):.6f}")
    trained = call.advantage is not None
    said.append(f"advantage {_signed(call.advantage)}" if trained else "not trained")
    if call.reward is not None:
        said.append(f"reward of the call {number(call.reward)}")
    if call.temperature is not None:
        said.append(f"temperature {number(call.temperature)}")
    return ", ".join(said)


def _role(node: ViewedNode, at: int) -> tuple[str, str]:
    for start, end, role, name in node.roles:
        if start <= at < end:
            return role, name
    return "", ""


def _at(values: Sequence[float | None], index: int) -> float | None:
    return values[index] if index < len(values) else None


def _logprob(value: float | None) -> str:
    return MISSING if value is None else f"{value:.4f}"


def _signed(value: float | None) -> str:
    return MISSING if value is None else f"{value:+.4g}"
