"""The protocol between a sender of weights and its receivers: lines of JSON over TCP.

A receiver joins, gets the address of the group, and gets another answer when all members have
joined. It can then request weights repeatedly: the sender answers that the broadcast starts, or
that only other weights are available, and answers again when all tensors have been broadcast from
rank 0, in the listed order. The group ends with the connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ajet_core.errors import EngineError
from ajet_core.interfaces import WeightUpdate

CHANNEL = "collective"
MOST_LINE = 1 << 16
Backend = Literal["gloo", "nccl"]


class _WireLine(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Join(_WireLine):
    """Create a group of the sender and `ranks` others.

    :param token: the sender's token.
    :param backends: backends that the others support, best first.
    """

    kind: Literal["join"] = "join"
    token: str
    ranks: Annotated[int, Field(ge=1, le=4096)]
    backends: list[Backend]


class Send(_WireLine):
    """Broadcast the weights of a policy version."""

    kind: Literal["send"] = "send"
    policy_version: int


class Group(_WireLine):
    """The address of a group.

    :param name: prefix of all keys in its store.
    :param port: port of the store (``torch.distributed.TCPStore``), which is hosted by rank 0.
    :param world_size: number of ranks, including the sender's rank 0.
    """

    kind: Literal["group"] = "group"
    name: str
    host: str
    port: int
    world_size: int
    backend: Backend


class Ready(_WireLine):
    """The broadcast starts."""

    kind: Literal["ready"] = "ready"


class Gone(_WireLine):
    """The requested weights have been replaced by others."""

    kind: Literal["gone"] = "gone"


class Done(_WireLine):
    """The request was completed."""

    kind: Literal["done"] = "done"


class Failed(_WireLine):
    """The request failed."""

    kind: Literal["failed"] = "failed"
    error: str


class TensorSpec(_WireLine):
    """One tensor of a broadcast.

    :param dtype: name in torch, such as ``bfloat16``.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]


Request = Join | Send
Answer = Group | Ready | Gone | Done | Failed
_REQUEST: TypeAdapter[Request] = TypeAdapter(Annotated[Request, Field(discriminator="kind")])
_ANSWER: TypeAdapter[Answer] = TypeAdapter(Annotated[Answer, Field(discriminator="kind")])
_SPECS = TypeAdapter(list[TensorSpec])


def encoded(line: Request | Answer) -> bytes:
    """Encode a message as a line with a newline."""
    return line.model_dump_json().encode() + b"\n"


def read_request(line: bytes) -> Request:
    """:raises ValueError: the line is not a request."""
    return _REQUEST.validate_json(line)


def read_answer(line: bytes) -> Answer:
    """:raises ValueError: the line is not an answer."""
    return _ANSWER.validate_json(line)


def make_update(
    policy_version: int, address: tuple[str, int], token: str, specs: list[TensorSpec]
) -> WeightUpdate:
    """Create the update for an engine; its location is ``tcp://HOST:PORT``."""
    host, port = address
    return WeightUpdate(
        channel=CHANNEL,
        policy_version=policy_version,
        location=f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}",
        metadata={"token": token, "tensors": _SPECS.dump_json(specs).decode()},
    )


def tensors_of(update: WeightUpdate) -> list[TensorSpec]:
    """Return the tensors of an update, in the order of the broadcast.

    :raises EngineError: the update has no valid list of tensors.
    """
    try:
        return _SPECS.validate_json(update.metadata["tensors"])
    except (KeyError, ValidationError) as error:
        raise EngineError(
            f"the update on the channel {CHANNEL!r} lists no tensors: {error}"
        ) from error


def shapes_of(specs: list[TensorSpec]) -> Mapping[str, tuple[int, ...]]:
    """Return shapes by name."""
    return {spec.name: spec.shape for spec in specs}
