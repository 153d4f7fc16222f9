"""Grammars of forced calls and JSON: what a model may write by them is what its parser reads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ajet_core.errors import UnsupportedError
from ajet_server.gateway.formats.constraints import AnswerFormat, Constraints, ToolChoice
from ajet_testing.tokenizers import SPECIALS, renderer_for, tokenizer_for
from tests.server.dialects.scripted import ABLE, MOVE, USER, Gateway, gateway

llguidance = pytest.importorskip("llguidance")


def tool(name: str, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TOOLS = (tool("move", direction={"enum": ["up", "down"]}), tool("look"))
UP = '{"name": "move", "arguments": {"direction": "up"}}'
LOOK = '{"name": "look", "arguments": {}}'


def call(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


class Checker:
    """Says whether a text may be written."""

    def __init__(self, path: Path) -> None:
        self.renderer = renderer_for("qwen3")
        tokenizer_for("qwen3")._backend.save(str(path / "tokenizer.json"))
        self.tokenizer = llguidance.LLTokenizer(
            str(path / "tokenizer.json"), eos_token=list(self.renderer.stop_token_ids)
        )

    def may_write(self, grammar: str, text: str) -> bool:
        matcher = llguidance.LLMatcher(self.tokenizer, grammar, log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        ids = [*self.renderer.encode(text), self.renderer.stop_token_ids[0]]
        return matcher.validate_tokens(ids) == len(ids)


@pytest.fixture(scope="module")
def checker(tmp_path_factory: pytest.TempPathFactory) -> Checker:
    return Checker(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def constraints() -> Constraints:
    return Constraints(renderer_for("qwen3"))


@pytest.mark.parametrize(
    ("choice", "allowed", "not_allowed"),
    [
        (
            ToolChoice(forced=True),
            [call(UP), call(LOOK), f"{call(UP)}\n{call(LOOK)}"],
            ["Up.", "", f"Up.\n{call(UP)}", call('{"name": "fly", "arguments": {}}'), call("{}")],
        ),
        (
            ToolChoice(forced=True, names=("move",), single=True),
            [call(UP)],
            [call(LOOK), f"{call(UP)}\n{call(UP)}"],
        ),
        (
            ToolChoice(forced=True, single=True),
            [call(UP), call(LOOK)],
            ["Up.", f"{call(UP)}\n{call(LOOK)}"],
        ),
        (
            ToolChoice(single=True),
            ["Up.", "", call(UP), f"Up.\n{call(UP)}"],
            [f"{call(UP)}\n{call(LOOK)}", f"{call(UP)}\nUp."],
        ),
    ],
)
def test_calls_are_held_to_what_is_asked(
    checker, constraints, choice, allowed, not_allowed
) -> None:
    grammar = constraints.calls(choice, TOOLS)
    assert [checker.may_write(grammar, text) for text in allowed] == [True] * len(allowed)
    assert [checker.may_write(grammar, text) for text in not_allowed] == [False] * len(not_allowed)


def test_arguments_fit_their_schema(checker, constraints) -> None:
    grammar = constraints.calls(ToolChoice(forced=True), TOOLS)
    assert not checker.may_write(grammar, call(UP.replace("up", "left")))
    assert not checker.may_write(grammar, call('{"name": "move", "arguments": {}}'))


def test_references_in_a_schema_are_found(checker, constraints) -> None:
    way = {"$defs": {"way": {"enum": ["up"]}}}
    schema = {"type": "object", "properties": {"direction": {"$ref": "#/$defs/way"}}, **way}
    tools = ({"type": "function", "function": {"name": "move", "parameters": schema}},)
    grammar = constraints.calls(ToolChoice(forced=True), tools)
    assert checker.may_write(grammar, call(UP))
    assert not checker.may_write(grammar, call(UP.replace("up", "down")))


def test_answers_are_json(checker, constraints) -> None:
    any_object = constraints.answer(AnswerFormat("", "response_format"))
    assert checker.may_write(any_object, '{"a": [1, null, "x"]}')
    assert checker.may_write(any_object, json.dumps({"a": [1, {"b": 2}]}, indent=4))
    assert checker.may_write(any_object, json.dumps({"a": [1, {"b": 2}]}, indent="\t"))
    assert not checker.may_write(any_object, '{"a":' + " " * 100 + "1}")
    # A model that writes one line break after the other would reach its limit of tokens.
    assert not checker.may_write(any_object, '{"a":\n\n1}')
    assert not checker.may_write(any_object, "[1]")
    assert not checker.may_write(any_object, 'Here: {"a": 1}')
    schema = json.dumps(TOOLS[0]["function"]["parameters"])
    typed = constraints.answer(AnswerFormat(schema, "response_format"))
    assert checker.may_write(typed, '{"direction": "down"}')
    assert not checker.may_write(typed, '{"direction": "left"}')


def test_who_has_tools_calls_them_or_answers_as_json(checker, constraints) -> None:
    schema = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'
    wanted = AnswerFormat(schema, "response_format")
    several = constraints.calls_or_answer(ToolChoice(), TOOLS, wanted)
    single = constraints.calls_or_answer(ToolChoice(single=True), TOOLS, wanted)
    for grammar in (several, single):
        for text in (call(UP), call(LOOK), '{"a": 1}'):
            assert checker.may_write(grammar, text)
        for text in ("Up.", "", '{"b": 1}', f"Up.\n{call(UP)}", f'{call(UP)}\n{{"a": 1}}', UP):
            assert not checker.may_write(grammar, text)
    assert checker.may_write(several, f"{call(UP)}\n{call(LOOK)}")
    assert not checker.may_write(single, f"{call(UP)}\n{call(LOOK)}")


def test_a_tool_that_is_not_there_cannot_be_forced(constraints) -> None:
    with pytest.raises(UnsupportedError, match="no tool is named 'fly'"):
        constraints.calls(ToolChoice(forced=True, names=("fly",)), TOOLS)


@pytest.mark.parametrize("family", sorted(SPECIALS))
def test_a_family_is_forced_only_in_the_form_that_its_parser_reads(family: str) -> None:
    renderer = renderer_for(family)
    constraints = Constraints(renderer)
    try:
        grammar = constraints.calls(ToolChoice(forced=True), TOOLS)
    except UnsupportedError as error:
        pytest.skip(f"this family cannot be forced: {error}")
    assert "start: call" in grammar
    parsed = renderer.parse(renderer.encode(call(UP)), [], TOOLS)
    assert [one.name for one in parsed.calls] == ["move"]


MUST = {"tool_choice": "required", "tools": [MOVE]}
AS_JSON = {"response_format": {"type": "json_object"}}


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        (MUST, "tool_choice"),
        ({"tools": [MOVE], "parallel_tool_calls": False}, "parallel_tool_calls"),
        (AS_JSON, "response_format"),
        ({"frequency_penalty": 1}, "frequency_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
    ],
)
async def test_what_the_engine_cannot_force_is_refused_by_name(settings, param) -> None:
    gate = gateway("x<|im_end|>")
    with pytest.raises(UnsupportedError) as caught:
        await gate.complete(USER, **settings)
    assert caught.value.param == param
    assert gate.calls == []


async def test_an_engine_that_can_is_told(checker) -> None:
    gate = gateway(f"{call(UP)}<|im_end|>")
    able = replace(ABLE, grammar=True, penalties=True)
    gate = Gateway(gate.engine, gate.renderer, capabilities=able)
    completion = await gate.complete(USER, **MUST, logit_bias={"5": 2}, presence_penalty=1)
    sampling = gate.engine.requests[0].sampling
    assert checker.may_write(sampling.grammar, call(UP))
    assert (sampling.logit_bias, sampling.presence_penalty) == (((5, 2.0),), 1.0)
    assert completion.choices[0].message.tool_calls[0].function.name == "move"
    await gate.complete(USER, tools=[MOVE])
    assert gate.engine.requests[1].sampling.grammar == ""
    # Nothing to be single without tools.
    await gate.complete(USER, parallel_tool_calls=False)
    assert gate.engine.requests[2].sampling.grammar == ""
    await gate.complete(USER, **AS_JSON)
    assert gate.engine.requests[3].sampling.grammar.startswith("start: %json")
    for tool_choice, text, may in [
        ("auto", call(UP), True),
        ("auto", '{"b": 2}', True),
        ("required", call(UP), True),
        ("required", '{"b": 2}', False),
        ("none", call(UP), False),
        ("none", '{"b": 2}', True),
    ]:
        await gate.complete(USER, **AS_JSON, tools=[MOVE], tool_choice=tool_choice)
        assert checker.may_write(gate.engine.requests[-1].sampling.grammar, text) is may
