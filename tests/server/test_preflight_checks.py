"""What a preflight says of the evidence, and of its lack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from ajet_core.interfaces import SealReport, StepReport
from ajet_core.protocol import PreflightCheck, PreflightConfig
from ajet_core.timeline import (
    Call,
    MessageText,
    PlacedMessage,
    TrainBatch,
    TrainCall,
    TrainEpisode,
)
from ajet_server.run.preflight_checks import Evidence, Longest, check_all, lost_messages

TOKENS = 40
PROVEN = SealReport(0, "checksums", tensors=7, servers=2)


def call(**changes: object) -> Call:
    made = Call(
        call_id="c",
        episode_id="e",
        index=0,
        suffix_ids=[1, 2, 3],
        sampled_ids=[4] * TOKENS,
        logprobs=[-1.0] * TOKENS,
        policy_versions=[0] * TOKENS,
        temperature=1.0,
        finish_reason="stop",
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def evidence(*gaps: float, **changes: object) -> Evidence:
    """One call, whose tokens' logprobs differ by these."""
    made = call()
    batch = TrainBatch(
        "b",
        1,
        [TrainEpisode("e", "g", 1.0)],
        [TrainCall("c", 0, 1.0, 1.0, made.logprobs, made.policy_versions)],
        [],
        TOKENS,
    )
    spread = [gaps[min(n * len(gaps) // TOKENS, len(gaps) - 1)] for n in range(TOKENS)]
    rehearsal = StepReport(1, tokens_trained=TOKENS, logprobs=[[-1.0 + gap for gap in spread]])
    found = Evidence(batch, [made], {}, PROVEN, Longest(43, 43, 43), rehearsal)
    return replace(found, **changes)  # type: ignore[arg-type]


def verdict(name: str, given: Evidence) -> PreflightCheck:
    (check,) = [c for c in check_all(given, PreflightConfig()) if c.name == name]
    assert bool(check.way_out) is (check.verdict != "pass")
    return check


def test_a_healthy_batch_passes() -> None:
    checks = check_all(evidence(1e-6), PreflightConfig())
    assert {check.name: check.verdict for check in checks} == dict.fromkeys(
        ("logprobs", "seal", "template", "tools", "memory", "rewards"), "pass"
    )


@pytest.mark.parametrize(
    ("gaps", "expected", "says"),
    [
        ((0.02,), "pass", "mean difference 0.02 nats over 40 tokens"),
        ((0.2,), "fail", "above preflight.max_logprob_gap 0.1"),
        ((0.001, 0.001, 0.001, 0.3), "fail", "the difference depends on the position"),
        ((0.001, 0.001, 0.001, 0.05), "warn", "varies with the position"),
        ((1e-7, 1e-7, 1e-7, 1e-4), "pass", "up to token 42"),
    ],
)
def test_the_gap_is_small_and_flat(gaps: tuple[float, ...], expected: str, says: str) -> None:
    check = verdict("logprobs", evidence(*gaps))
    assert check.verdict == expected
    assert says in f"{check.found}; {check.way_out}"


def test_tokens_of_other_weights_say_nothing_of_the_gap() -> None:
    check = verdict("logprobs", evidence(5.0, policy_version=3))
    assert (check.verdict, "only 0 tokens" in check.found) == ("warn", True)


def test_a_gap_under_dropout_is_told_and_not_judged() -> None:
    check = verdict("logprobs", evidence(0.5, dropout=True))
    assert check.verdict == "pass"
    assert "with dropout" in check.found


def test_a_batch_that_the_trainer_refuses() -> None:
    check = verdict("logprobs", evidence(0.0, rehearsal=None, refusal="its loss is 7e9"))
    assert (check.verdict, "its loss is 7e9" in check.found) == ("fail", True)


@pytest.mark.parametrize(
    ("seal", "expected"),
    [
        (PROVEN, "pass"),
        (SealReport(0, "shared", tensors=3, servers=1), "pass"),
        (SealReport(0), "warn"),
        (SealReport(0, noise=0.01), "warn"),
        (SealReport(3, "probe", servers=2, change=0.3, noise=0.01), "pass"),
        (SealReport(0, "checksums", 7, 2, breaches=("server 1 was stale",)), "warn"),
    ],
)
def test_the_seal(seal: SealReport, expected: str) -> None:
    assert verdict("seal", evidence(0.0, seal=seal)).verdict == expected


def test_answers_that_the_template_writes_otherwise() -> None:
    check = verdict("template", evidence(0.0, calls=[call(), call(metadata={"drift_tokens": "2"})]))
    assert check.verdict == "warn"
    assert "1 of 2 answers" in check.found


def test_messages_that_prompts_lack() -> None:
    texts = {1: "You open", 2: " doors. Door 7", 3: " is locked"}

    def decode(ids: Sequence[int]) -> str:
        return "".join(texts[token] for token in ids)

    messages = [
        MessageText("system", "You open\n doors."),
        MessageText("tool", 'is \\"locked\\"'),
        MessageText("tool", "the door opens after a while"),
        MessageText("assistant", "never written"),
        MessageText("user", "?!"),
    ]
    placed = tuple(PlacedMessage(0, 1, text) for text in messages)
    assert lost_messages([call(messages=placed)], decode) == {"tool": 1}
    # The first token is that of an earlier prompt.
    continued = call(call_id="d", suffix_ids=[2, 3], messages=placed, base=call(), shared=1)
    assert lost_messages([continued], decode) == {"tool": 1}
    check = verdict("template", evidence(0.0, lost={"tool": 1}))
    assert check.verdict == "fail"
    assert "lack messages that the agent sent: 1 of role 'tool'" in check.found


def test_answers_that_come_back_in_another_form_are_told_and_kept() -> None:
    calls = [call(), call(metadata={"echo_fields": "content,arguments"})]
    check = verdict("template", evidence(0.0, calls=calls))
    assert check.verdict == "pass"
    assert "the agent sent back 1 of them in another form (arguments, content)" in check.found


def test_tools_whose_calls_nobody_reads() -> None:
    unread = call(metadata={"calls_unread": "1"})
    check = verdict("tools", evidence(0.0, calls=[call(), unread]))
    assert check.verdict == "fail"
    assert "1 of 2 calls offer tools" in check.found
    assert "model.renderer" in check.way_out


def of_clients(gaps: dict[str, float], unread: set[str]) -> Evidence:
    """A call of each client, whose tokens' logprobs differ by this."""
    calls = [
        call(
            call_id=client,
            episode_id=f"e-{client}",
            metadata={"calls_unread": "1"} if client in unread else {},
        )
        for client in gaps
    ]
    given = evidence(0.0)
    batch = replace(
        given.batch,
        episodes=[TrainEpisode(made.episode_id, "g", 1.0) for made in calls],
        calls=[TrainCall.of(made, number, 1.0) for number, made in enumerate(calls)],
    )
    logprobs = [[-1.0 + gap] * TOKENS for gap in gaps.values()]
    return replace(
        given,
        batch=batch,
        calls=calls,
        rehearsal=StepReport(1, tokens_trained=TOKENS, logprobs=logprobs),
        clients={made.episode_id: made.call_id for made in calls},
    )


@pytest.mark.parametrize(
    ("showing", "expected"), [({"b"}, "warn"), ({"a", "b"}, "fail"), (set(), "pass")]
)
def test_one_client_of_several_fails_no_check_by_itself(showing: set[str], expected: str) -> None:
    gaps = {client: 0.5 if client in showing else 0.0 for client in "abc"}
    given = of_clients(gaps, showing)
    for name in ("logprobs", "tools"):
        check = verdict(name, given)
        assert check.verdict == expected
        assert ("only the calls of client b show this" in check.found) is (expected == "warn")


def test_the_only_client_of_a_batch_fails_checks() -> None:
    given = of_clients({"a": 0.5}, {"a"})
    assert (verdict("logprobs", given).verdict, verdict("tools", given).verdict) == ("fail", "fail")


def test_an_agent_that_makes_no_call() -> None:
    given = evidence(0.0, calls=[], faults={"empty": "none of the episodes made a model call"})
    assert verdict("template", given).verdict == "fail"
    assert verdict("rewards", given).verdict == "fail"


@pytest.mark.parametrize(
    ("longest", "expected", "says"),
    [
        (Longest(43, 100, 100), "pass", "100 tokens fit"),
        (Longest(43, None, 43), "pass", "model.max_context is not set"),
        (Longest(43, 100, 43), "warn", "up to the limit of 100, were not tried"),
        (Longest(43, 100, 43, "too large"), "fail", "the longest call so far has 43 tokens"),
        (Longest(43, 100, 0), "warn", "no episode was computed"),
    ],
)
def test_the_longest_episode(longest: Longest, expected: str, says: str) -> None:
    check = verdict("memory", evidence(0.0, longest=longest))
    assert check.verdict == expected
    assert says in f"{check.found}; {check.way_out}"


def test_checks_that_a_batch_without_signal_prevents_lead_to_its_rewards() -> None:
    longest = Longest(43, 100, 0)
    given = evidence(0.0, longest=longest, rehearsal=None, faults={"no_signal": "all are 0"})
    for name in ("logprobs", "memory"):
        check = verdict(name, given)
        assert check.verdict == "warn"
        assert "the batch has no signal" in check.found
        assert "`rewards`" in check.way_out
        assert "no signal" not in verdict(name, replace(given, uses_rewards=False)).found


@pytest.mark.parametrize(("fault", "expected"), [("no_signal", "fail"), ("flat", "warn")])
def test_rewards_that_do_not_differ(fault: str, expected: str) -> None:
    given = evidence(0.0, faults={fault: "all are 1"})
    assert verdict("rewards", given).verdict == expected
    assert verdict("rewards", replace(given, uses_rewards=False)).verdict == "pass"
