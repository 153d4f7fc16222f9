"""Proof that an engine serves the published weights, by checksums of each tensor at both ends."""

from __future__ import annotations

from collections.abc import Mapping

from ajet_core.errors import SealError
from ajet_core.interfaces import WeightUpdate
from ajet_engines.in_server.ajet_checksums import OTHERWISE

__all__ = ["check_seal"]

_SHOWN = 3


def check_seal(
    update: WeightUpdate,
    served: Mapping[str, str],
    who: str,
    before: WeightUpdate | None = None,
) -> None:
    """Compare the checksums of served and published tensors.

    :param served: checksums by the names of tensors in files.
    :param who: the server, for the message.
    :param before: the previous update, which a server that loaded nothing still serves.
    :raises SealError: tensors differ; the message names them and a likely cause.
    """
    expected = update.checksums
    wrong = [name for name in expected if served.get(name) not in expected[name]]
    if not wrong:
        return
    shown = ", ".join(wrong[:_SHOWN]) + (", ..." if len(wrong) > _SHOWN else "")
    raise SealError(
        f"{who} does not serve the weights of policy version {update.policy_version}: "
        f"{len(wrong)} of {len(expected)} tensors differ from the published ones ({shown}); "
        f"{_diagnosis(expected, served, wrong, before)}"
    )


def _diagnosis(
    expected: Mapping[str, tuple[str, ...]],
    served: Mapping[str, str],
    wrong: list[str],
    before: WeightUpdate | None,
) -> str:
    """Return a likely cause of differences."""
    missing = [name for name in wrong if name not in served]
    if missing:
        return f"{len(missing)} of them were never loaded"
    damaged = [name for name in wrong if served[name] == OTHERWISE]
    if damaged:
        return f"{len(damaged)} of them have changed in the server's memory since they were loaded"
    old = before.checksums if before is not None else {}
    stale = [name for name in wrong if served[name] in old.get(name, ())]
    if stale:
        assert before is not None, "it has checksums"
        return f"{len(stale)} of them are from policy version {before.policy_version}"
    places = {digest: name for name in wrong for digest in expected[name]}
    swapped = next((name for name in wrong if served[name] in places), None)
    if swapped is not None:
        return f"{swapped} contains what was published as {places[served[swapped]]}"
    return "they match no known version"
