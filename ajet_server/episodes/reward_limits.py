"""How large rewards may be."""

from __future__ import annotations

from ajet_core.errors import RequestError
from ajet_core.protocol import EndRequest


def check_size(request: EndRequest, limit: float) -> None:
    """Refuse rewards, or parts of them, that are too large for sums and gradients.

    :param limit: of their absolute values.
    :raises RequestError: one is larger; `param` names the field.
    """
    if abs(request.reward) > limit:
        raise _too_large("reward", request.reward, limit, "reward")
    for field in ("components", "call_rewards", "agent_rewards"):
        values: dict[str, float] = getattr(request, field)
        for name, value in values.items():
            if abs(value) > limit:
                raise _too_large(f"{field}: {name!r}", value, limit, field)


def _too_large(what: str, value: float, limit: float, param: str) -> RequestError:
    return RequestError(
        f"{what} is {value:g}; this server takes values from {-limit:g} to {limit:g} (setting server.max_reward): "
        "scale the rewards of the task down",
        param=param,
    )
