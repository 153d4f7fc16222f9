"""Which requests are model calls, and what is sent instead."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentjet.agents.rerouting import AGENT_HEADER, is_unsupported_route, read_model_call, reroute
from agentjet.agents.route import Route
from ajet_core.interfaces import ModelEndpoint

ENDPOINT = ModelEndpoint("http://swarm:8642/v1", "episode-key")
CONTENTS: dict[str, Any] = {"contents": []}
CHAT = {"model": "m", "messages": []}


def body(**content: Any) -> bytes:
    return json.dumps(content).encode()


@pytest.mark.parametrize(
    ("path", "content", "goes_to"),
    [
        ("/v1/chat/completions", CHAT, "/chat/completions"),
        ("/openai/deployments/gpt/chat/completions", CHAT, "/chat/completions"),
        ("/openai/deployments/m/chat/completions", {"messages": []}, "/chat/completions"),
        ("/v1/completions", {"model": "m", "prompt": "x"}, "/completions"),
        ("/v1/responses", {"model": "m", "previous_response_id": "r"}, "/responses"),
        ("/v1/responses", {"model": "m", "input": "x"}, "/responses"),
        ("/v1/messages", {**CHAT, "max_tokens": 1}, "/messages"),
        ("/v1/messages/count_tokens", CHAT, "/messages/count_tokens"),
        ("/v1beta/models/m:generateContent", CONTENTS, "/models/m:generateContent"),
        (
            "/v1/projects/p/locations/l/publishers/google/models/m:streamGenerateContent",
            CONTENTS,
            "/models/m:streamGenerateContent",
        ),
        ("/v1/models/m:countTokens", {"generateContentRequest": {}}, "/models/m:countTokens"),
    ],
)
def test_model_calls_of_every_dialect_are_known(
    path: str, content: dict[str, Any], goes_to: str
) -> None:
    call = read_model_call("POST", path, body(**content))
    assert call is not None
    assert (call.path, call.model) == (goes_to, "m")


@pytest.mark.parametrize(
    ("method", "path", "content"),
    [
        ("GET", "/v1/chat/completions", body(**CHAT)),
        ("POST", "/v1/embeddings", body(model="m", input="x")),
        ("POST", "/api/messages", body(model="m", messages=[])),
        ("POST", "/v1/messages", body(text="hello")),
        ("POST", "/v1/completions", b"not JSON"),
        ("POST", "/v1/completions", b"[1]"),
        ("POST", "/survey/responses", body(answers=[])),
        ("POST", "/survey/responses", body(model="Golf", answers=[])),
        ("POST", "/v1/completions", body(prompt="x")),
        ("POST", "/v1beta/models/m:generateContent", body(model="m")),
        ("POST", "/v1beta/models/m:embedContent", body(contents=[])),
    ],
)
def test_requests_of_tools_pass_by(method: str, path: str, content: bytes) -> None:
    assert read_model_call(method, path, content) is None


def sent(headers: dict[str, str], **changes: Any) -> Any:
    content = body(**CHAT, temperature=0)
    call = read_model_call("POST", "/v1/chat/completions", content)
    assert call is not None
    options: dict[str, Any] = {"agent": None, "sampling": {}, **changes}
    return reroute(call, content, headers.items(), ENDPOINT, **options), content


def test_secrets_for_somebody_else_do_not_go_to_the_server() -> None:
    secrets = {
        "Authorization": "Bearer sk-real",
        "X-Api-Key": "sk-real",
        "api-key": "sk-real",
        "X-Goog-Api-Key": "sk-real",
        "Cookie": "session=real",
        "OpenAI-Organization": "real-org",
        "Proxy-Authorization": "Basic real",
        "Helicone-Auth": "Bearer real",
        "Ocp-Apim-Subscription-Key": "real",
        "X-Whatever": "real",
    }
    rerouted, _ = sent({**secrets, "Host": "api.openai.com", "Idempotency-Key": "kept"})
    assert rerouted.url == "http://swarm:8642/v1/chat/completions"
    assert rerouted.headers == [
        ("Idempotency-Key", "kept"),
        ("authorization", "Bearer episode-key"),
    ]


def test_a_body_that_is_not_overridden_is_sent_byte_by_byte() -> None:
    rerouted, content = sent({})
    assert rerouted.content is content


def test_googles_calls_keep_their_form_and_have_sampling_in_its_place() -> None:
    config = {"temperature": 0, "topP": 0.5, "maxOutputTokens": 9}
    content = body(contents=[], generationConfig=config)
    path = "/v1beta/models/gemini:streamGenerateContent"
    call = read_model_call("POST", path, content, "key=real&alt=sse")
    assert call is not None
    kept = reroute(call, content, [], ENDPOINT, agent=None, sampling={})
    assert kept.content is content
    assert kept.url == "http://swarm:8642/v1/models/gemini:streamGenerateContent?alt=sse"
    sampling = {"temperature": 1.0, "top_p": None, "max_tokens": 5}
    changed = reroute(call, content, [], ENDPOINT, agent=None, sampling=sampling)
    assert json.loads(changed.content) == {
        "contents": [],
        "generationConfig": {"temperature": 1.0, "maxOutputTokens": 5},
    }


def test_a_model_that_is_in_the_path_is_put_in_the_body() -> None:
    for content in (body(messages=[]), body(messages=[], model=None)):
        call = read_model_call("POST", "/openai/deployments/gpt/chat/completions", content)
        assert call is not None
        changed = reroute(call, content, [], ENDPOINT, agent=None, sampling={})
        assert json.loads(changed.content) == {"model": "gpt", "messages": []}


@pytest.mark.parametrize(
    ("path", "strange"),
    [
        ("/v1beta/models/gemini-3:generateContent", False),
        ("/api/chat", True),
        ("/v1/responses/compact", True),
        ("/model/claude/invoke", True),
        ("/my-chain/invoke", False),
        ("/v1/embeddings", False),
        ("/search", False),
    ],
)
def test_model_calls_of_other_dialects_are_noticed(path: str, strange: bool) -> None:
    assert is_unsupported_route("POST", path) == strange
    assert not is_unsupported_route("GET", path)


def test_sampling_is_overridden_or_taken_out() -> None:
    rerouted, _ = sent({}, sampling={"temperature": 1.0, "max_tokens": 7, "seed": None})
    assert json.loads(rerouted.content) == {**CHAT, "temperature": 1.0, "max_tokens": 7}
    rerouted, _ = sent({}, sampling={"temperature": None})
    assert json.loads(rerouted.content) == CHAT


def test_names_of_agents_need_not_be_ascii_nor_of_one_line() -> None:
    rerouted, _ = sent({}, agent="计划\r\nx-evil: 1")
    assert (AGENT_HEADER, "计划 x-evil: 1".encode()) in rerouted.headers


@pytest.mark.parametrize(
    ("agent", "sent_as"),
    [("a\x00b", b"a b"), ("x\ud800", b"x"), ("long " * 100, b"long")],
)
def test_no_name_makes_a_call_fail(agent: str, sent_as: bytes) -> None:
    rerouted, _ = sent({}, agent=agent)
    ((_, name),) = [pair for pair in rerouted.headers if pair[0] == AGENT_HEADER]
    assert name.startswith(sent_as)
    assert len(name) <= 256


def test_a_name_that_the_request_has_stands() -> None:
    rerouted, _ = sent({"X-Ajet-Agent": "mine"}, agent="theirs")
    names = [value for name, value in rerouted.headers if name.lower() == AGENT_HEADER]
    assert names == ["mine"]


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "system", "content": "You plan."}]}),
        (
            "/v1/chat/completions",
            {
                "messages": [
                    {"role": "developer", "content": [{"type": "text", "text": "You plan."}]}
                ]
            },
        ),
        ("/v1/responses", {"input": "x", "instructions": "You plan."}),
        ("/v1/responses", {"input": [{"role": "developer", "content": "You plan."}]}),
        ("/v1/messages", {"messages": [], "system": [{"type": "text", "text": "You plan."}]}),
        (
            "/v1/models/m:generateContent",
            {"contents": [], "systemInstruction": {"parts": [{"text": "You plan."}]}},
        ),
    ],
)
def test_system_prompts_are_found_in_every_dialect(path: str, content: dict[str, Any]) -> None:
    call = read_model_call("POST", path, body(model="m", **content))
    assert call is not None
    assert call.system_prompt == "You plan."
    route = Route({"": ENDPOINT}, agents={"worker": "You work.", "planner": "You plan."})
    assert route.agent_of(call.system_prompt) == "planner"
    assert route.agent_of("Somebody else") is None
