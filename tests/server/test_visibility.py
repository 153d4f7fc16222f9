"""What a client may see of a status, and its operator sees whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from ajet_core.protocol import Finding, ServerStatus
from ajet_server.http.visibility import status_for
from ajet_server.security.credentials import Token

GOLDEN = Path(__file__).parents[1] / "protocol" / "golden" / "ServerStatus.json"
ALICE = Token("alice", "alice", "client", "")
OPERATOR = Token("op", "op", "control", "")


def told(viewer: Token, *, mixture: bool) -> str:
    """What a viewer reads of a finding about one tag."""
    status = ServerStatus.model_validate_json(GOLDEN.read_text(encoding="utf-8"))
    finding = Finding(code="reward_drop", message="tag bobs: fell", seconds=0, stuck=False)
    changes = {"findings": [finding], "mixture": status.mixture if mixture else None}
    (seen,) = status_for(viewer, status.model_copy(update=changes)).findings
    return seen.message


def test_a_client_is_not_told_which_tag_a_finding_is_about() -> None:
    assert "bobs" not in told(ALICE, mixture=True)
    assert told(OPERATOR, mixture=True) == "tag bobs: fell"


@pytest.mark.parametrize("viewer", [ALICE, OPERATOR])
def test_a_finding_about_whole_batches_is_told_in_full(viewer: Token) -> None:
    assert told(viewer, mixture=False) == "tag bobs: fell"
