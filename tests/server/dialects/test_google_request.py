"""What is read from the bodies of Google's dialect."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_core.errors import RequestError, UnsupportedError
from ajet_server.gateway.formats.exchange import Session
from ajet_server.gateway.formats.google.reading import read_count_request, read_generate_request
from ajet_server.gateway.formats.google.schemas import json_schema
from ajet_server.gateway.formats.request import ModelRequest
from ajet_server.gateway.rendering.conversation import ConversationIndex

PLAIN = {"contents": [{"parts": [{"text": "Where are you?"}]}]}


def read(body: Any) -> ModelRequest:
    session = Session("ep", ConversationIndex())
    return read_generate_request(json.dumps(body).encode(), session)[0]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"contents": []}, "contents"),
    ({"contents": [{"role": "system", "parts": []}]}, "contents[0].role"),
    ({"contents": [{"parts": 5}]}, "contents[0].parts"),
    ({"contents": [{"parts": [5]}]}, "contents[0].parts[0]"),
    ({"contents": [{"parts": [{"text": 5}]}]}, "contents[0].parts[0].text"),
    (
        {"contents": [{"parts": [{"inline_data": {"data": "", "mimeType": "image/png"}}]}]},
        "contents[0].parts[0].inlineData",
    ),
    ({"contents": ["a", {"role": "model", "parts": ["I"]}]}, "contents[1].role"),
    (
        {"contents": [{"role": "model", "parts": [{"functionCall": {"name": "a", "args": 5}}]}]},
        "contents[0].parts[0].functionCall.args",
    ),
    (
        {"contents": [{"parts": [{"functionResponse": {"name": "a", "response": {}}}]}]},
        "contents[0].parts[0].functionResponse",
    ),
    ({"systemInstruction": {"parts": [{"fileData": {}}]}}, "systemInstruction.parts[0].fileData"),
    ({"tools": [{"functionDeclarations": [{}]}]}, "tools[0].functionDeclarations[0].name"),
    (
        {"tools": [{"functionDeclarations": [{"name": "a", "parameters": {"type": 5}}]}]},
        "tools[0].functionDeclarations[0].parameters.type",
    ),
    (
        {"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}},
        "toolConfig.functionCallingConfig",
    ),
    (
        {"toolConfig": {"functionCallingConfig": {"mode": "SOME"}}},
        "toolConfig.functionCallingConfig.mode",
    ),
    (
        {"toolConfig": {"functionCallingConfig": {"allowedFunctionNames": ["a"]}}},
        "toolConfig.functionCallingConfig.allowedFunctionNames",
    ),
    ({"cachedContent": "cachedContents/1"}, "cachedContent"),
    ({"generation_config": {"top_k": "many"}}, "generationConfig.topK"),
    ({"generationConfig": {"logprobs": 3}}, "generationConfig.logprobs"),
    ({"generationConfig": {"stopSequences": [5]}}, "generationConfig.stopSequences"),
    (
        {"generationConfig": {"responseMimeType": "text/x.enum"}},
        "generationConfig.responseMimeType",
    ),
    (
        {"generationConfig": {"responseSchema": {"items": 5}}},
        "generationConfig.responseSchema.items",
    ),
    (
        {"generationConfig": {"responseModalities": ["AUDIO"]}},
        "generationConfig.responseModalities",
    ),
]


@pytest.mark.parametrize(("changes", "field"), REFUSED)
def test_what_cannot_be_read_is_refused_by_the_name_of_its_field(
    changes: dict[str, Any], field: str
) -> None:
    with pytest.raises((RequestError, UnsupportedError)) as refused:
        read({**PLAIN, **changes})
    assert refused.value.param == field
    assert refused.value.message.startswith(field)


def test_names_may_be_in_snake_case() -> None:
    camel = {
        **PLAIN,
        "systemInstruction": "Be brief.",
        "generationConfig": {"maxOutputTokens": 5, "topK": 3.0, "stopSequences": ["a"]},
        "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["move"]}},
        "tools": [{"functionDeclarations": [{"name": "move"}, {"name": "look"}]}],
    }
    snake = {
        **PLAIN,
        "system_instruction": {"parts": {"text": "Be brief."}},
        "generation_config": {"max_output_tokens": 5, "top_k": 3, "stop_sequences": ["a"]},
        "tool_config": {
            "function_calling_config": {"mode": "ANY", "allowed_function_names": ["move"]}
        },
        "tools": [{"function_declarations": [{"name": "move"}, {"name": "look"}]}],
    }
    request = read(camel)
    assert request == read(snake)
    assert (request.max_tokens, request.top_k, request.stop) == (5, 3, ("a",))
    assert (request.tool_choice.forced, request.tool_choice.names) == (True, ("move",))
    assert len(request.tools or ()) == 2
    assert not request.ignored


def test_adjacent_parts_of_the_model_are_one_message_and_users_are_not() -> None:
    request = read(
        {
            "contents": [
                {"role": "user", "parts": [{"text": "a"}, {"text": "b"}]},
                {"parts": None},
                {"role": "model", "parts": [{"text": "c"}, {"thought": True, "text": "d"}]},
                {"role": "model", "parts": [{"text": ""}, {"functionCall": {"name": "f"}}]},
                {"role": "function", "parts": [{"functionResponse": {"name": "f"}}]},
            ]
        }
    )
    assert [(message.role, message.content) for message in request.messages] == [
        ("user", "ab"),
        ("user", ""),
        ("assistant", "c"),
        ("tool", ""),
    ]
    assert request.messages[2].reasoning == "d"
    assert [call.name for call in request.messages[2].tool_calls] == ["f"]
    assert request.messages[3].tool_call_id == request.messages[2].tool_calls[0].id


def test_schemas_become_json_schemas() -> None:
    given = {
        "type": "OBJECT",
        "propertyOrdering": ["b", "a"],
        "properties": {
            "a": {"type": "ARRAY", "min_items": "1", "items": {"type": "TYPE_UNSPECIFIED"}},
            "b": {"type": "INTEGER", "format": "int32", "enum": ["1", "2"], "nullable": True},
            "nullable": {"any_of": [{"type": "STRING", "example": "x"}, {"ref": "#/defs/c"}]},
        },
        "additional_properties": {"type": "number"},
        "defs": {"c": {"type": "STRING", "format": "date-time"}},
        "required": ["b"],
    }
    converted = json_schema(given, "schema")
    assert list(converted["properties"]) == ["b", "a", "nullable"]
    assert converted == {
        "type": "object",
        "properties": {
            "a": {"type": "array", "minItems": 1, "items": {}},
            "b": {"type": ["integer", "null"], "enum": [1, 2, None]},
            "nullable": {"anyOf": [{"type": "string", "examples": ["x"]}, {"$ref": "#/$defs/c"}]},
        },
        "additionalProperties": {"type": "number"},
        "$defs": {"c": {"type": "string", "format": "date-time"}},
        "required": ["b"],
    }


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "args",
                    "contents",
                    "enum",
                    "functionCall",
                    "functionDeclarations",
                    "functionResponse",
                    "functionCallingConfig",
                    "generateContentRequest",
                    "items",
                    "logprobs",
                    "name",
                    "parameters",
                    "parts",
                    "properties",
                    "response",
                    "responseSchema",
                    "role",
                    "stop_sequences",
                    "text",
                    "thinkingConfig",
                    "type",
                ]
            )
            | st.text(max_size=5),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)
PARTS = st.lists(
    st.fixed_dictionaries(
        {}, optional={"text": JSON, "functionCall": JSON, "functionResponse": JSON, "thought": JSON}
    ),
    max_size=3,
)
BODIES = st.fixed_dictionaries(
    {
        "contents": JSON
        | st.lists(
            st.fixed_dictionaries(
                {"role": st.sampled_from(["user", "model", "x"])}, optional={"parts": JSON | PARTS}
            ),
            max_size=4,
        )
    },
    optional={
        "systemInstruction": JSON,
        "tools": JSON | st.lists(st.fixed_dictionaries({"functionDeclarations": JSON}), max_size=3),
        "toolConfig": JSON,
        "generationConfig": JSON,
        "generateContentRequest": JSON,
    },
)


@given(BODIES)
def test_any_body_is_read_or_refused_by_the_name_of_a_field(body: dict[str, Any]) -> None:
    session = Session("ep", ConversationIndex())
    for reader in (read_generate_request, read_count_request):
        refused = None
        try:
            reader(json.dumps(body).encode(), session)
        except (RequestError, UnsupportedError) as error:
            refused = error
        assert refused is None or refused.param
