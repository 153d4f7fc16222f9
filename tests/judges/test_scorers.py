"""The judge `autoevals`, with the real library and an endpoint whose model is a function."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import autoevals
import pytest

from agentjet import load_judge
from agentjet.judges import JudgeFailedError
from agentjet.judges.scorers import AutoevalsJudge, AutoevalsJudgeSettings
from ajet_core.errors import ConfigError
from ajet_core.interfaces import Judge
from ajet_testing.endpoints.plain import EndpointCall, PlainEndpoint
from ajet_testing.suites.judge_suite import JudgeSuite
from tests.judges.judging_endpoint import JudgingEndpoint

pytestmark = pytest.mark.processes

TASK = {"prompt": "What is six plus one?", "answer": "seven"}
CLASSIFIER = {
    "name": "Short",
    "prompt_template": "Is this short? {{output}} (of {{limit}})",
    "choice_scores": {"short": 1, "long": 0.25},
}


def choice(letter: str, reasons: str = "because") -> dict[str, Any]:
    arguments = json.dumps({"reasons": reasons, "choice": letter})
    function = {"name": "select_choice", "arguments": arguments}
    return {"content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]}


def factual(call: EndpointCall) -> Any:
    """The model of `Factuality`: C if the submission is the expert's answer, D if not."""
    expert = call.text.partition("[Expert]: ")[2].partition("\n")[0]
    submission = call.text.partition("[Submission]: ")[2].partition("\n*****")[0]
    return choice("C" if submission.strip() == expert.strip() else "D")


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Callable[..., Any]]]:
    """What the model answers, under ``model``; the endpoint is under ``endpoint``."""
    # What the library would use of itself.
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "another")
    monkeypatch.setenv("BRAINTRUST_AI_GATEWAY_URL", "http://127.0.0.1:9/v1")
    answers: dict[str, Any] = {"model": factual}

    def answer(call: EndpointCall) -> Any:
        return answers["model"](call)

    with PlainEndpoint(answer) as endpoint:
        answers["endpoint"] = endpoint
        yield answers


def judge_at(url: str, **settings: Any) -> AutoevalsJudge:
    given = {"scorer": "Factuality", "base_url": url, "model": "m", "api_key_env": ""}
    judge = AutoevalsJudge(AutoevalsJudgeSettings(**{**given, **settings}))
    judge._endpoint._sleep = lambda seconds: None
    return judge


class TestFactuality(JudgeSuite):
    examples: ClassVar[Sequence[tuple[Any, Any, float]]] = (
        (TASK, "seven", 1.0),
        (TASK, "eight", 0.0),
        ({"prompt": "And {{output}}?", "answer": "one"}, "one", 1.0),
    )

    @pytest.fixture(autouse=True)
    def _endpoint(self, answers: dict[str, Any]) -> None:
        self.url = answers["endpoint"].base_url

    def make_judge(self) -> Judge:
        return judge_at(self.url)


class TestWithoutModel(JudgeSuite):
    examples: ClassVar[Sequence[tuple[Any, Any, float]]] = (
        (TASK, "seven", 1.0),
        (TASK, "seveN", 0.8),
        (TASK, "", 0.0),
    )

    def make_judge(self) -> Judge:
        return load_judge("autoevals", {"scorer": "Levenshtein"})


def test_choice_and_reason_are_kept(answers: dict[str, Any]) -> None:
    answers["model"] = lambda call: choice("B", "long " * 200)
    outcome = judge_at(answers["endpoint"].base_url)(TASK, "seven")
    assert (outcome.reward, outcome.metadata["choice"]) == (0.6, "B")
    assert len(outcome.metadata["rationale"]) == 500
    (call,) = answers["endpoint"].calls
    assert (call.model, call.key) == ("m", "")
    assert call.body["temperature"] == 0.0


def test_options_and_arguments_of_the_scorer(answers: dict[str, Any]) -> None:
    answers["model"] = lambda call: choice("long" if "wordy" in call.text else "short")
    judge = judge_at(
        answers["endpoint"].base_url,
        scorer="LLMClassifier",
        options=CLASSIFIER,
        arguments={"limit": "most"},
    )
    assert [judge({"most": 9}, text).reward for text in ("ok", "wordy")] == [1.0, 0.25]
    assert "wordy (of 9)" in answers["endpoint"].calls[-1].text
    with pytest.raises(ConfigError, match="no field 'most'"):
        judge(TASK, "ok")


def test_scorers_of_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "my_scorers.py").write_text(
        "from autoevals import Score, Scorer\n"
        "class Length(Scorer):\n"
        "  def __init__(self, most=10): self.most = most\n"
        "  def _run_eval_sync(self, output, expected=None, **kwargs):\n"
        "    score = None if output == '' else min(1.0, len(output) / self.most)\n"
        "    return Score(name='length', score=score)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    settings = {"scorer": "my_scorers:Length", "options": {"most": 20}, "arguments": {}}
    judge = judge_at("", **settings)
    assert judge({}, "x" * 5).reward == 0.25
    # The library's word for a result that was not scored.
    with pytest.raises(JudgeFailedError, match="score is None"):
        judge({}, "")


def test_votes_are_other_requests_and_their_mean_counts(answers: dict[str, Any]) -> None:
    answers["model"] = lambda call: choice("C" if call.body["seed"] < 2 else "D")
    outcome = judge_at(answers["endpoint"].base_url, votes=3)(TASK, "seven")
    assert outcome.reward == pytest.approx(2 / 3)
    assert outcome.components["agreement"] == pytest.approx(2 / 3)
    assert {call.body["temperature"] for call in answers["endpoint"].calls} == {1.0}


def test_a_score_costs_one_request(answers: dict[str, Any], tmp_path: Path) -> None:
    endpoint = answers["endpoint"]
    judge = judge_at(endpoint.base_url)
    first = judge(TASK, "seven")
    assert judge(TASK, "seven") == first
    assert len(endpoint.calls) == 1
    for _ in range(2):
        assert judge_at(endpoint.base_url, cache=tmp_path)(TASK, "seven") == first
    assert len(endpoint.calls) == 2
    for path in tmp_path.iterdir():
        path.write_text('["another version"]')
    assert judge_at(endpoint.base_url, cache=tmp_path)(TASK, "seven") == first
    assert len(endpoint.calls) == 3
    others: Sequence[dict[str, Any]] = (
        {"model": "n"},
        {"scorer": "Possible"},
        {"options": {"use_cot": False}},
    )
    for number, other in enumerate(others, 4):
        answers["model"] = lambda call: choice("A")
        judge_at(endpoint.base_url, cache=tmp_path, **other)(TASK, "seven")
        assert len(endpoint.calls) == number


@pytest.mark.parametrize(
    "answer",
    ["I cannot say", "", choice("Z"), {"content": "", "tool_calls": []}],
    ids=["text", "empty", "other", "no-calls"],
)
def test_no_score_is_an_error_and_no_reward(answers: dict[str, Any], answer: Any) -> None:
    answers["model"] = lambda call: answer
    with pytest.raises(JudgeFailedError, match="the scorer Factuality gave no score"):
        judge_at(answers["endpoint"].base_url, retries=2)(TASK, "seven")
    assert [call.body["seed"] for call in answers["endpoint"].calls] == [0, 1000, 2000]


def test_an_unusable_answer_is_asked_for_again(answers: dict[str, Any]) -> None:
    left = iter(["hm", 503, choice("Z")])
    answers["model"] = lambda call: next(left, None) or factual(call)
    assert judge_at(answers["endpoint"].base_url)(TASK, "seven").reward == 1.0


@pytest.mark.parametrize("status", [429, 500])
def test_an_endpoint_that_is_away_is_not_asked_a_hundred_times(
    answers: dict[str, Any], status: int
) -> None:
    """The library itself would wait for 10^16 seconds after status 429."""
    answers["model"] = lambda call: status
    with pytest.raises(JudgeFailedError, match=f"status {status}"):
        judge_at(answers["endpoint"].base_url, retries=2)(TASK, "seven")
    assert len(answers["endpoint"].calls) == 3
    left = iter([status] * 5)
    answers["model"] = lambda call: next(left, None) or factual(call)
    judge = judge_at(answers["endpoint"].base_url, retries=1, on_failure="wait")
    waits: list[float] = []
    judge._endpoint._sleep = waits.append
    assert judge(TASK, "seven").reward == 1.0
    assert waits == [0.5, 1, 2, 4, 8]


def test_the_budget_ends_all_requests() -> None:
    def verdict(material: dict[str, Any], body: dict[str, Any]) -> Any:
        raise AssertionError("only embeddings are asked for")

    settings = {"scorer": "EmbeddingSimilarity", "embedding_model": "e", "budget_tokens": 25}
    with JudgingEndpoint(verdict).serving() as endpoint:
        judge = judge_at(endpoint.url, **settings)
        assert judge({**TASK, "answer": "abc"}, "cab").reward == pytest.approx(1.0)
        assert judge.spent_tokens == 20
        assert not autoevals.EmbeddingSimilarity._CACHE
        assert {body["model"] for body in endpoint.requests} == {"e"}
        with pytest.raises(JudgeFailedError, match="30 of 25 tokens"):
            judge({**TASK, "answer": "abc"}, "h")


def test_scorers_that_scorers_create_ask_the_same_endpoint() -> None:
    """The texts are compared with a scorer that has no client of its own."""
    settings = {
        "scorer": "JSONDiff",
        "embedding_model": "e",
        "options": {"string_scorer": autoevals.EmbeddingSimilarity()},
    }
    with JudgingEndpoint(lambda material, body: None).serving() as endpoint:
        task = {"prompt": "", "answer": {"a": "abc"}}
        assert judge_at(endpoint.url, **settings)(task, {"a": "cab"}).reward == pytest.approx(1.0)
        assert len(endpoint.requests) == 2


def test_nothing_is_a_result(answers: dict[str, Any]) -> None:
    assert judge_at(answers["endpoint"].base_url)(TASK, None).reward == 0.0


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="there is no scorer Nothing: write the name"):
        load_judge("autoevals", {"scorer": "Nothing"})
    with pytest.raises(ConfigError, match="there is no scorer no_module:Nothing"):
        load_judge("autoevals", {"scorer": "no_module:Nothing"})
    with pytest.raises(ConfigError, match=r"asks a model: set judges\.autoevals\.base_url"):
        load_judge("autoevals", {"scorer": "Factuality"})(TASK, "seven")
    with pytest.raises(ConfigError, match="scorer"):
        load_judge("autoevals")
    monkeypatch.setitem(sys.modules, "autoevals", None)
    with pytest.raises(ConfigError, match=r"needs pip install 'agentjet\[judges\]>=0.1'"):
        load_judge("autoevals", {"scorer": "Factuality"})
