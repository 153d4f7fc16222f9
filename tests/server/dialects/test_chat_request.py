import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet_core.errors import RequestError, UnsupportedError
from ajet_server.gateway.formats.chat import read_chat_request
from ajet_server.gateway.formats.constraints import ToolChoice
from ajet_server.gateway.rendering.messages import ChatMessage, ToolCall
from tests.server.dialects.scripted import MOVE, USER, body


def parse(*messages, **settings):
    return read_chat_request(body(*(messages or [USER]), **settings))


def test_defaults():
    request = parse()
    assert request.messages == (ChatMessage("user", "Where is the goal?"),)
    assert (request.n, request.temperature, request.top_p, request.top_k) == (1, 1.0, 1.0, 0)
    assert (request.max_tokens, request.seed, request.stop, request.tools) == (None, None, (), None)
    assert not (request.stream)
    assert not (request.logprobs)
    assert not (request.ignored)


def test_null_means_absent():
    names = [
        "n",
        "stop",
        "seed",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "top_k",
        "stream",
        "stream_options",
        "logprobs",
        "top_logprobs",
        "tools",
        "tool_choice",
        "model",
        "parallel_tool_calls",
        "response_format",
        "logit_bias",
        "functions",
        "function_call",
        "user",
    ]
    assert parse(**dict.fromkeys(names)) == parse(model=None)


def test_settings_are_taken():
    request = parse(
        n=2,
        stop=["a", "b", "a"],
        seed=-5,
        max_tokens=9,
        temperature=0,
        top_p=0.5,
        top_k=-1,
        stream=True,
        stream_options={"include_usage": True},
        logprobs=True,
        top_logprobs=3,
        tools=[MOVE],
        return_token_ids=True,
    )
    assert (request.n, request.stop, request.seed, request.max_tokens) == (2, ("a", "b"), -5, 9)
    assert (request.temperature, request.top_p, request.top_k) == (0.0, 0.5, 0)
    assert request.stream
    assert request.include_usage
    assert request.logprobs
    assert request.top_logprobs == 3
    assert request.tools == (MOVE,)
    assert request.return_token_ids


def test_max_completion_tokens_wins():
    assert parse(max_tokens=5, max_completion_tokens=7).max_tokens == 7


@pytest.mark.parametrize(
    "content", ["hi", ["hi"], [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]]
)
def test_content_parts_are_one_text(content):
    assert parse({"role": "user", "content": content}).messages[0].content == "hi"


CALLING = {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f"}}]}
SAID: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    USER,
    CALLING,
    {"role": "tool", "content": "3", "tool_call_id": "c"},
    {"role": "assistant", "content": "Up.", "reasoning_content": "Hm."},
    {"role": "assistant", "content": ""},
]
OTHERWISE = [
    {"role": "developer", "content": "Be brief."},
    {"role": "assistant", "content": USER["content"]},
    {"role": "user"},
    {"role": "user", "content": USER["content"], "name": "me"},
    {"role": "tool", "content": "3", "tool_call_id": "d"},
    {"role": "tool", "content": "3", "tool_call_id": "c", "name": "f"},
    {"role": "tool", "name": "c", "content": "3", "tool_call_id": "c"},
    {"role": "assistant", "content": "Up."},
    {"role": "assistant", "content": None},
]
TALKS = st.lists(st.sampled_from([*SAID, *OTHERWISE]), min_size=1, max_size=6)


@given(before=TALKS, now=TALKS)
@settings(deadline=None)
def test_messages_that_are_known_change_nothing(before, now):
    known = parse(*before).messages
    assert read_chat_request(body(*now), known) == parse(*now)


def test_known_messages_are_taken_over():
    known = parse(*SAID).messages
    messages = read_chat_request(body(*SAID, USER), known).messages
    assert [message is other for message, other in zip(messages, known, strict=False)] == [
        True,
        True,
        False,
        True,
        False,
        True,
    ]


def test_a_wrong_message_behind_known_ones_is_named_by_its_place():
    known = parse(*SAID).messages
    with pytest.raises(RequestError) as caught:
        read_chat_request(body(*SAID, {"role": 5}), known)
    assert caught.value.param == "messages[6].role"
    with pytest.raises(RequestError) as caught:
        read_chat_request(body(*SAID, {"role": "robot"}), known)
    assert caught.value.param == "messages[6].role"


@pytest.mark.parametrize("message", [{"content": None}, {"content": ""}, {"content": []}, {}])
def test_empty_content_is_empty_text(message):
    assert parse({"role": "assistant", **message}).messages[0] == ChatMessage("assistant")


def test_roles_and_tool_calls():
    function = {"name": "f", "arguments": {"a": 1}}
    call = {"id": "c1", "type": "function", "index": 0, "function": function}
    request = parse(
        {"role": "developer", "content": "brief"},
        {"role": "user", "content": "go", "name": "bob"},
        {"role": "system", "content": "mid"},
        {"role": "assistant", "tool_calls": [call], "audio": None, "token_ids": [1]},
        {"role": "tool", "tool_call_id": "c1", "content": "ok", "name": "f"},
    )
    assert request.messages == (
        ChatMessage("system", "brief"),
        ChatMessage("user", "go", name="bob"),
        ChatMessage("system", "mid"),
        ChatMessage("assistant", tool_calls=(ToolCall("c1", "f", '{"a": 1}'),)),
        ChatMessage("tool", "ok", tool_call_id="c1", name="f"),
    )


def test_ignored_keys_are_named_for_a_header():
    request = parse(
        user="u",
        store=False,
        metadata={},
        service_tier="auto",
        odd=1,
        nothing=None,
        logit_bias={},
        **{"bad\r\nname: x,y": 1, "é": 2},
    )
    assert request.ignored == ("badnamexy", "metadata", "odd", "service_tier", "store", "user")


def test_tool_choice_none_offers_no_tools():
    assert parse(tools=[MOVE], tool_choice="none").tools is None
    assert parse(tools=[MOVE], tool_choice="auto").tools == (MOVE,)


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("response_format", {"type": "grammar"}),
        ("functions", [{"name": "f"}]),
        ("function_call", "auto"),
        ("audio", {"voice": "x"}),
        ("modalities", ["text", "audio"]),
        ("prediction", {"type": "content", "content": "x"}),
        ("web_search_options", {}),
        ("repetition_penalty", 1.1),
        ("guided_json", {}),
        ("chat_template_kwargs", {"enable_thinking": False}),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(param, value):
    with pytest.raises(UnsupportedError) as caught:
        parse(tools=[MOVE], **{param: value})
    assert caught.value.param == param
    assert param in caught.value.message


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("response_format", {"type": "text"}),
        ("logit_bias", {}),
        ("frequency_penalty", 0.0),
        ("presence_penalty", 0),
        ("modalities", ["text"]),
        ("parallel_tool_calls", True),
        ("tool_choice", "auto"),
        ("functions", []),
    ],
)
def test_neutral_values_are_accepted(param, value):
    assert parse(**{param: value}).ignored == ()


@pytest.mark.parametrize(
    ("settings", "choice"),
    [
        ({}, ToolChoice()),
        ({"tool_choice": "auto"}, ToolChoice()),
        ({"tool_choice": "required"}, ToolChoice(forced=True)),
        (
            {"tool_choice": {"type": "function", "function": {"name": "move"}}},
            ToolChoice(forced=True, names=("move",), single=True),
        ),
        ({"parallel_tool_calls": False}, ToolChoice(single=True, param="parallel_tool_calls")),
        (
            {"tool_choice": "required", "parallel_tool_calls": False},
            ToolChoice(forced=True, single=True),
        ),
    ],
)
def test_whether_tools_must_be_called(settings, choice):
    assert parse(tools=[MOVE], **settings).tool_choice == choice


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "perhaps", "tools": [MOVE]}, "tool_choice"),
        ({"tool_choice": {"type": "function"}, "tools": [MOVE]}, "tool_choice.function.name"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {}}},
            "response_format.json_schema.schema",
        ),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"frequency_penalty": 3}, "frequency_penalty"),
    ],
)
def test_what_makes_no_sense_is_named(settings, param):
    with pytest.raises(RequestError) as caught:
        parse(**settings)
    assert caught.value.param == param


def test_formats_penalties_and_bias_are_read():
    schema = {"type": "object"}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    request = parse(
        response_format=form, logit_bias={"5": -1.5}, frequency_penalty=0.5, presence_penalty=-1
    )
    assert json.loads(request.answer_format.schema) == schema
    assert request.logit_bias == ((5, -1.5),)
    assert (request.frequency_penalty, request.presence_penalty) == (0.5, -1)
    assert parse(response_format={"type": "json_object"}).answer_format.schema == ""


@pytest.mark.parametrize(
    ("messages", "param", "kind"),
    [
        ([{"role": "function", "name": "f", "content": "x"}], "messages[0].role", UnsupportedError),
        ([{"role": "robot", "content": "x"}], "messages[0].role", RequestError),
        ([USER, {"content": "x"}], "messages[1].role", RequestError),
        ([USER, {"role": "tool", "content": "x"}], "messages[1].tool_call_id", RequestError),
        ([{"role": "user", "content": 5}], "messages[0].content", RequestError),
        ([{"role": "user", "content": [{}]}], "messages[0].content[0]", RequestError),
        (
            [{"role": "user", "content": [{"type": "text"}]}],
            "messages[0].content[0].text",
            RequestError,
        ),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            "messages[0].content[0].type",
            UnsupportedError,
        ),
        (
            [{"role": "user", "content": ["a", {"type": "input_audio"}]}],
            "messages[0].content[1].type",
            UnsupportedError,
        ),
        (
            [{"role": "assistant", "tool_calls": [{"id": "c"}]}],
            "messages[0].tool_calls[0].function",
            RequestError,
        ),
        (
            [{"role": "assistant", "tool_calls": [{"type": "custom", "function": {"name": "f"}}]}],
            "messages[0].tool_calls[0].type",
            UnsupportedError,
        ),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 5}}]}],
            "messages[0].tool_calls[0].function.arguments",
            RequestError,
        ),
        (["hi"], "messages[0]", RequestError),
        ([], "messages", RequestError),
    ],
)
def test_wrong_messages_are_named_by_path(messages, param, kind):
    with pytest.raises(kind) as caught:
        read_chat_request(json.dumps({"messages": messages}).encode())
    assert caught.value.param == param
    assert caught.value.message.startswith(param)


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": "many"}, "n"),
        ({"temperature": 2.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"seed": 2**63}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"stop": list("abcdefghijklmnopq")}, "stop"),
        ({"stream": "maybe"}, "stream"),
        ({"stream_options": 5}, "stream_options"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"tools": [5]}, "tools[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": 1}}]},
            "tools[0].function.parameters",
        ),
    ],
)
def test_wrong_settings_are_named(settings, param):
    with pytest.raises(RequestError) as caught:
        parse(**settings)
    assert caught.value.param == param
    assert caught.value.message.startswith(param)


def test_tools_of_unknown_types_are_passed_over_by_name():
    request = read_chat_request(body(USER, tools=[{"type": "web_search"}, MOVE]))
    assert request.tools == (MOVE,)
    assert request.ignored == ("tools[0]",)
    assert read_chat_request(body(USER, tools=[{"type": "web_search"}])).tools is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"5",
        b"\xff\xfe",
        b'{"messages": NaN}',
        b"[" * 100_000,
        b'{"messages": [{"role": "user", "content": "\\ud83d"}]}',
        b'{"a": ' + b'{"a": ' * 5000,
        b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e999}',
        b'{"messages": [{"role": "user", "content": "x"}], "temperature": -Infinity}',
    ],
)
def test_malformed_bodies_are_request_errors(data):
    with pytest.raises(RequestError):
        read_chat_request(data)
