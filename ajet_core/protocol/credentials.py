"""Named tokens: who may do what, how much, and until when."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, StringConstraints

from ajet_core.protocol.base import Message

TokenScope = Literal["control", "client", "view"]

TokenName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


def _number(value: object) -> object:
    """Refuse values that are not numbers. ``5.0`` is an integer in JSON, and is accepted."""
    if isinstance(value, bool | str):
        raise ValueError("Input should be a valid integer")
    return value


PositiveInt = Annotated[int, Field(ge=1, le=2**31 - 1), BeforeValidator(_number)]


class TokenQuotas(Message):
    """What a token's holder may use at once; None leaves it to the limits of the server.

    :param open_episodes: episodes claimed and not ended.
    :param waiting_claims: claims that wait for a slot.
    :param calls_at_once: model calls being answered, of all its episodes together.
    :param requests_per_minute: without model calls, which have an episode's key.
    :param event_streams: open readers of events and of running calls.
    """

    open_episodes: PositiveInt | None = None
    waiting_claims: PositiveInt | None = None
    calls_at_once: PositiveInt | None = None
    requests_per_minute: PositiveInt | None = None
    event_streams: PositiveInt | None = None


class TokenRequest(Message):
    """Body of ``POST /v1/tokens``.

    :param name: the user or program that it is for; unique among valid tokens.
    :param scope: ``client`` claims episodes and sees those alone; ``view`` sees everything and
        changes nothing; ``control`` may do everything.
    :param expires_in: seconds until it expires; None never does.
    """

    name: TokenName
    scope: TokenScope = "client"
    expires_in: Annotated[float, Field(strict=True, gt=0, le=10 * 366 * 86400)] | None = None
    quotas: TokenQuotas = TokenQuotas()


class TokenInfo(Message):
    """A token without its secret.

    :param token_id: public; it stands in the audit log and, for clients, at their episodes.
    :param created_at: unix seconds, as are the other times.
    :param last_used_at: as far as it is known; written when the server ends.
    """

    token_id: str
    name: str
    scope: TokenScope
    quotas: TokenQuotas
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    last_used_at: float | None


class TokenGrant(Message):
    """Answer of ``POST /v1/tokens``: the only time that the secret is shown."""

    token: str = Field(repr=False)
    info: TokenInfo


class TokenList(Message):
    """Answer of ``GET /v1/tokens``: those that were ever made, the oldest first."""

    tokens: list[TokenInfo]
