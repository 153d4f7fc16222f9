"""Restrict the server's state to what a token may see.

A client sees its own data, and data that identifies no other client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from ajet_core.protocol import (
    ErrorDetail,
    Evaluation,
    Event,
    Finding,
    HealthKind,
    MixtureStatus,
    RunStatus,
    ServerStatus,
)
from ajet_server.batches.batch_facts import COMPONENT_MEAN, TAG_FACTS
from ajet_server.health import CHECKS
from ajet_server.observe.watchdog import shortage
from ajet_server.security.credentials import Token
from ajet_server.security.secrets import without_secrets

# The keys of server-wide events that a client may read. Workers' messages and reports on forks are
# left out, because they quote agents of any tenant.
_SHARED: Mapping[str, frozenset[str]] = {
    "state": frozenset({"state", "policy_version"}),
    "run": frozenset({"what", "run_id", "step"}),
    "step": frozenset({"step", "policy_version", "metrics", "plan"}),
    "worker": frozenset({"what"}),
    "refused": frozenset({"step"}),
    "mixture": frozenset({"what", "ratios"}),
    "gap": frozenset({"lost_from", "lost_to"}),
}


# Metrics of single tags and components, whose names may be another client's.
_TAG_METRICS = tuple(f"{name}/" for name in (*TAG_FACTS, COMPONENT_MEAN))

# Findings that quote no client, and one that a client sees without the names of tasks.
_STARVED = "incomplete_tasks"
_SHARED_FINDINGS = frozenset(
    {"no_client", "no_signal", "engine_stalled", "tool_calls_unread", *get_args(HealthKind)}
)
# Findings whose messages name a single tag if there is a mixture.
_TAG_FINDINGS = frozenset(check.kind for check in CHECKS if check.by_tag)


def event_for(viewer: Token, event: Event, owner: str | None) -> Event | None:
    """Return `event` as `viewer` may see it, None if it may not.

    :param owner: id of the token whose episode the event is about; None for events of the server.
    """
    if viewer.scope != "client" or viewer.token_id == owner:
        return event
    shared = _SHARED.get(event.type)
    if owner is not None or shared is None:
        return None
    data: dict[str, Any] = {key: value for key, value in event.data.items() if key in shared}
    if "metrics" in data:
        data["metrics"] = _totals(data["metrics"])
    return event.model_copy(update={"data": data})


def status_for(viewer: Token, status: ServerStatus) -> ServerStatus:
    """Return `status` as `viewer` may see it: a client gets totals and no text about others."""
    if viewer.scope != "control":
        status = status.model_copy(update={"run_dir": None})
    if viewer.scope != "client":
        return status
    step, error = status.last_step, status.error
    return status.model_copy(
        update={
            "last_step": step
            and step.model_copy(
                update={"metrics": _totals(step.metrics), "forks": [], "findings": []}
            ),
            # The operator's text, or an error message of any tenant's agents.
            "paused": status.paused and "the run is paused; ask its operator for the reason",
            "findings": _shared_findings(status),
            "quarantined": [
                entry for entry in status.quarantined if entry.client_id == viewer.token_id
            ],
            # It shows other clients' progress with their tags.
            "mixture": None,
            "evaluations": evaluations_for(viewer, status.evaluations),
            # Its text names episodes and tasks of other clients.
            "preflight": None,
            # It shows what other clients paid for.
            "spending": None,
            "error": error
            and ErrorDetail(
                type=error.type, message="the run failed; ask its operator for the reason"
            ),
        }
    )


def _shared_findings(status: ServerStatus) -> list[Finding]:
    without_names = "some started tasks lack episodes, and no client is working on them"
    texts: dict[str, str] = {
        _STARVED: "; ".join(filter(None, [without_names, shortage(status.batch)]))
    }
    if status.mixture is not None:
        texts |= dict.fromkeys(
            _TAG_FINDINGS, "this applies to one of the tags; ask the run's operator which"
        )
    return [
        finding.model_copy(update={"message": texts.get(finding.code, finding.message)})
        for finding in status.findings
        if finding.code in _SHARED_FINDINGS | {_STARVED}
    ]


def engine_metrics_for(viewer: Token, text: str) -> str:
    """Return the engine's metrics for `viewer`: "" for a client, since they cover all calls."""
    return "" if viewer.scope == "client" else text


def _totals(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if not name.startswith(_TAG_METRICS)}


def mixture_for(viewer: Token, mixture: MixtureStatus) -> MixtureStatus:
    """Return `mixture` as `viewer` may see it: a client does not see the progress of tags."""
    return mixture if viewer.scope != "client" else mixture.model_copy(update={"tags": {}})


def evaluations_for(viewer: Token, evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Return the evaluations that `viewer` may see: a client sees its own."""
    return [e for e in evaluations if viewer.scope != "client" or e.client_id == viewer.token_id]


def run_for(viewer: Token, run: RunStatus) -> RunStatus:
    """Return `run` as `viewer` may see it: only control tokens see secrets in settings."""
    if viewer.scope == "control":
        return run
    return run.model_copy(update={"config": without_secrets(run.config)})
