"""What of the server's state a token may see: a client gets what is its own, and what names nobody."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ajet_core.protocol import ErrorDetail, Event, ServerStatus
from ajet_core.server.tokens import Token

# Of events that concern everybody, what a client may read. Messages of workers, and reports on forks, quote what
# agents of any tenant said.
_SHARED: Mapping[str, frozenset[str]] = {
    "state": frozenset({"state", "policy_version"}),
    "run": frozenset({"what", "run_id", "step"}),
    "step": frozenset({"step", "policy_version", "metrics", "plan"}),
    "worker": frozenset({"what"}),
    "refused": frozenset({"step"}),
    "gap": frozenset({"lost_from", "lost_to"}),
}


# Findings that quote nobody.
_SHARED_FINDINGS = frozenset({"no_client", "no_signal", "engine_stalled"})


def event_for(viewer: Token, event: Event, owner: str | None) -> Event | None:
    """`event` as `viewer` may see it; None if it may not.

    :param owner: id of the token whose episode it is about; None for one that is about the server.
    """
    if viewer.scope != "client" or viewer.token_id == owner:
        return event
    shared = _SHARED.get(event.type)
    if owner is not None or shared is None:
        return None
    data: dict[str, Any] = {key: value for key, value in event.data.items() if key in shared}
    return event.model_copy(update={"data": data})


def status_for(viewer: Token, status: ServerStatus) -> ServerStatus:
    """`status` as `viewer` may see it: a client gets totals, without words that quote others."""
    if viewer.scope != "client":
        return status
    step, error = status.last_step, status.error
    return status.model_copy(
        update={
            "last_step": step and step.model_copy(update={"forks": [], "findings": []}),
            # The operator's words, or those that agents of any tenant failed with.
            "paused": status.paused and "the run is paused; its operator sees why",
            "findings": [f for f in status.findings if f.code in _SHARED_FINDINGS],
            "set_aside": [
                aside for aside in status.set_aside if aside.client_id == viewer.token_id
            ],
            "error": error
            and ErrorDetail(type=error.type, message="the run failed; its operator sees why"),
        }
    )
