"""Joint episodes: parts on several servers that are ended together or aborted together."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ajet_core.protocol.base import Message, Name

JointId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{32,128}$")]
"""At least 128 random bits as text. With a token, it allows to read how the joint episode ended."""

JointOutcome = Literal["open", "ended", "aborted", "unknown"]
"""An arbiter's decision. ``open``: not yet decided. ``unknown`` from the right run: never ended."""


class JointPart(Message):
    """Which part of a joint episode a claim is for.

    :param role: what the client calls the server that it asks.
    :param arbiter: the role of the server whose outcome is that of all: the first in the order of
        the alphabet. Its part is claimed first, so that an arbiter knows of every joint episode
        that another server knows of.
    :param arbiter_run: the id of the arbiter's run, as its ``GET /v1/run`` says it.
    """

    joint_id: JointId = Field(repr=False)
    role: Name
    arbiter: Name
    arbiter_run: Name


class PreparedPart(Message):
    """A part whose outcome is stored and waits for the arbiter's.

    :param seconds: for how long it has waited since it was prepared, or since the server was
        started.
    """

    episode_id: str
    joint_id: str = Field(repr=False)
    role: str
    arbiter: str
    arbiter_run: str
    seconds: float


class PreparedParts(Message):
    """Answer of ``GET /v1/joint``: the prepared parts that the asking token claimed."""

    prepared: list[PreparedPart]


class JointOutcomesRequest(Message):
    """Body of ``POST /v1/joint/outcomes``, which an arbiter is asked."""

    joint_ids: Annotated[list[JointId], Field(max_length=1024)] = Field(repr=False)


class JointOutcomes(Message):
    """Answer of ``POST /v1/joint/outcomes``.

    :param run_id: of this server; if it is another run than the arbiter's, the outcomes mean
        nothing.
    :param outcomes: by joint id.
    """

    run_id: str | None
    outcomes: dict[str, JointOutcome] = Field(repr=False)
