"""What all protocol messages have in common."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, StringConstraints


class Message(BaseModel):
    """A message of the swarm protocol: immutable, unknown fields refused, no NaN or infinity."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


Name = Annotated[str, StringConstraints(min_length=1, max_length=256)]
"""A task id, group, tag, component name: any text of 1 to 256 characters."""


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


AS_JSON_INTEGER = BeforeValidator(_whole)
"""For strict integers: accepts 1.0 of JSON too. Comes last, or the schema loses the bounds."""

MetadataKey = Annotated[str, StringConstraints(min_length=1, max_length=128)]
MetadataText = Annotated[str, StringConstraints(max_length=4096)]
