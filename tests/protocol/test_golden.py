"""The messages on the wire, as clients in other languages see them.

A change of these files changes the protocol: an addition needs a new minor version, a breaking
change a new major version.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from ajet_core import protocol
from ajet_core.protocol.base import Message

GOLDEN = Path(__file__).parent / "golden"
FILES = sorted(GOLDEN.glob("*.json"))


def message_type(path: Path) -> type[Message]:
    found = getattr(protocol, path.stem.partition("-")[0])
    assert isinstance(found, type)
    assert issubclass(found, Message)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_golden_message_is_read_and_written_unchanged(path: Path) -> None:
    cls = message_type(path)
    wire = json.loads(path.read_text(encoding="utf-8"))
    message = cls.model_validate_json(path.read_bytes())
    assert json.loads(message.model_dump_json()) == wire


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_an_unknown_field_is_refused_everywhere(path: Path) -> None:
    wire = {**json.loads(path.read_text(encoding="utf-8")), "surprise": 1}
    with pytest.raises(ValidationError, match="surprise"):
        message_type(path).model_validate(wire)


def test_every_message_has_a_golden_file() -> None:
    public = {
        name
        for name in protocol.__all__
        if isinstance(found := getattr(protocol, name), type) and issubclass(found, Message)
    }
    nested = {"ErrorDetail", "BatchProgress", "StepSummary"}
    nested |= {"AlgorithmConfig", "BatchConfig", "ComponentChoice", "LoraConfig", "ModelConfig"}
    nested |= {"TimelineCall", "TimelineFork", "TimelineNode", "TimelineRole", "TimelineSampling"}
    nested |= {
        "TimelineConfig",
        "Evaluation",
        "EvaluationConfig",
        "AgentRule",
        "CallRules",
        "CallSampling",
        "FailureConfig",
        "RolloutConfig",
        "MixtureStage",
        "RolloutStatus",
        "TagProgress",
        "Finding",
        "PreflightCheck",
        "PreflightConfig",
        "PreflightReport",
        "Quarantine",
        "GroupCounts",
        "TokenQuotas",
        "JointPart",
        "PreparedPart",
        "PaidUse",
        "Spending",
        "TimeLeft",
    }
    assert {path.stem.partition("-")[0] for path in FILES} == public - nested
