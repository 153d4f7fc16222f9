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
    """The part of a joint episode that is claimed.

    :param role: the client's name for the server that receives the claim.
    :param arbiter: the role of the server that decides the outcome of all parts: the first in
        alphabetical order. Its part is claimed first, so that the arbiter has a record of every
        joint episode of which another server has a part.
    :param arbiter_run: the id of the arbiter's run, from its ``GET /v1/run``.
    """

    joint_id: JointId = Field(repr=False)
    role: Name
    arbiter: Name
    arbiter_run: Name


class PreparedPart(Message):
    """A part whose outcome is stored, and which waits for the arbiter's outcome.

    :param seconds: how long it has waited since it was prepared, or since the server started.
    """

    episode_id: str
    joint_id: str = Field(repr=False)
    role: str
    arbiter: str
    arbiter_run: str
    seconds: float


class PreparedParts(Message):
    """Answer of ``GET /v1/joint``: the prepared parts that the request's token claimed."""

    prepared: list[PreparedPart]


class JointOutcomesRequest(Message):
    """Body of ``POST /v1/joint/outcomes``, a request to an arbiter."""

    joint_ids: Annotated[list[JointId], Field(max_length=1024)] = Field(repr=False)


class JointOutcomes(Message):
    """Answer of ``POST /v1/joint/outcomes``.

    :param run_id: this server's run; if it is not the arbiter's run, ignore the outcomes.
    :param outcomes: by joint id.
    """

    run_id: str | None
    outcomes: dict[str, JointOutcome] = Field(repr=False)
