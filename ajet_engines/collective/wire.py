"""What a sender of weights and those who receive them say to each other: lines of JSON over TCP.

A receiver joins, is told where the group meets, and is answered once more when all of it have met. Then it asks for weights
as often as it likes: it is told that they are about to be broadcast, or that there are others by now, and is answered once more
when all tensors have been broadcast, from rank 0, in the order in which they are listed. The connection stands for the group: where it ends, the group ends.
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


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Join(_Line):
    """Make a group of the sender and `ranks` others.

    :param token: of the sender.
    :param backends: that the others can use, best first.
    """

    kind: Literal["join"] = "join"
    token: str
    ranks: Annotated[int, Field(ge=1, le=4096)]
    backends: list[Backend]


class Send(_Line):
    """Broadcast the weights of a policy version."""

    kind: Literal["send"] = "send"
    policy_version: int


class Group(_Line):
    """Where a group meets.

    :param name: prefix of all keys in its store.
    :param port: of the store (``torch.distributed.TCPStore``), which rank 0 holds.
    :param world_size: all ranks, the sender's 0 among them.
    """

    kind: Literal["group"] = "group"
    name: str
    host: str
    port: int
    world_size: int
    backend: Backend


class Ready(_Line):
    """The broadcast begins."""

    kind: Literal["ready"] = "ready"


class Gone(_Line):
    """Other weights are offered by now."""

    kind: Literal["gone"] = "gone"


class Done(_Line):
    """It has been done."""

    kind: Literal["done"] = "done"


class Failed(_Line):
    """It could not be done."""

    kind: Literal["failed"] = "failed"
    error: str


class TensorSpec(_Line):
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
    """A line, with its end."""
    return line.model_dump_json().encode() + b"\n"


def read_request(line: bytes) -> Request:
    """:raises ValueError: it is none."""
    return _REQUEST.validate_json(line)


def read_answer(line: bytes) -> Answer:
    """:raises ValueError: it is none."""
    return _ANSWER.validate_json(line)


def make_update(
    policy_version: int, address: tuple[str, int], token: str, specs: list[TensorSpec]
) -> WeightUpdate:
    """The update that tells an engine of weights; its location is ``tcp://HOST:PORT``."""
    host, port = address
    return WeightUpdate(
        channel=CHANNEL,
        policy_version=policy_version,
        location=f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}",
        metadata={"token": token, "tensors": _SPECS.dump_json(specs).decode()},
    )


def tensors_of(update: WeightUpdate) -> list[TensorSpec]:
    """The tensors of an update, in the order of the broadcast.

    :raises EngineError: it does not list them.
    """
    try:
        return _SPECS.validate_json(update.metadata["tensors"])
    except (KeyError, ValidationError) as error:
        raise EngineError(
            f"the update on the channel {CHANNEL!r} lists no tensors: {error}"
        ) from error


def shapes_of(specs: list[TensorSpec]) -> Mapping[str, tuple[int, ...]]:
    """Shapes by name."""
    return {spec.name: spec.shape for spec in specs}
