"""Arguments of tool calls: answers are read exactly as the family's template writes them."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ajet_core.timeline.radix import common_prefix
from ajet_server.gateway.rendering.messages import ChatMessage, ToolCall
from ajet_server.gateway.rendering.tagged_arguments import TAGGED_FAMILIES
from ajet_testing.tokenizers import MORE_SPECIALS, SPECIALS, renderer_for
from tests.server.dialects.harmony import gpt_oss_renderer
from tests.support.tiers import examples

TAGGED = sorted(TAGGED_FAMILIES)
FAMILIES = sorted([*SPECIALS, *MORE_SPECIALS, "gpt-oss"])
OPENED = "<|end|><|start|>assistant"
# Kimi K2 writes the name as a part of the id.
CALL_ID = "functions.write_file:0"
ASKED = [ChatMessage("user", "go")]
SOURCE = "    if x:\n\treturn 1\n"
# A tag that ends an argument is text where nothing follows that may stand behind an argument.
CLOSING = ("</parameter>", "</arg_value>", "</arg_value:opensource>", "</invoke>", "</function>x")
JSON_LIKE = ("123", "1.50", "true", "True", "null", "None", "NaN", "{}", "[1, 2]", '{"a": 1}')
PIECES = ("\n", " ", "\t", "\r\n", '"', "'", "\\", "{", "é", "日本", "😀", "\u2028", "x", "&lt;")
# What is one token in some family has meanings of its own.
PLAIN = st.text(max_size=12).filter(lambda text: not {"<", "|", "[", "]"} & {*text})
NASTY = st.lists(st.sampled_from(PIECES + JSON_LIKE + CLOSING), max_size=8).map("".join) | PLAIN
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: (
        st.lists(inner | NASTY, max_size=3)
        | st.dictionaries(st.sampled_from("abc"), inner | NASTY, max_size=3)
    ),
    max_leaves=6,
)


def renderer(name):
    return gpt_oss_renderer() if name == "gpt-oss" else renderer_for(name)


def tools(**properties):
    schema = {"type": "object", "properties": properties}
    return [{"type": "function", "function": {"name": "write_file", "parameters": schema}}]


def typed(*names):
    return {"type": list(names)} if len(names) > 1 else {"type": names[0]}


def sampled(name, arguments, offered):
    """The prompt, and the tokens in which the template of a family writes a call."""
    family = renderer(name)
    asked = family.render(ASKED, offered).ids
    call = ToolCall(CALL_ID, "write_file", json.dumps(arguments))
    written = family.render(
        [*ASKED, ChatMessage("assistant", tool_calls=(call,))], offered, asking=False
    ).ids
    answer = written[common_prefix(asked, written, 0) :]
    if name == "gpt-oss":
        answer = [*family.encode(OPENED), *answer]
    if name == "deepseek-r1":
        # The prompt begins the reasoning; the template takes it out of history.
        answer = [*family.encode("</think>"), *answer]
    return asked, answer


def read(name, arguments, offered):
    """The arguments of the call that is read in what the template writes; None if none is read."""
    asked, answer = sampled(name, arguments, offered)
    parsed = renderer(name).parse(answer, asked, offered)
    if not parsed.calls:
        assert parsed.malformed
        return None
    (call,) = parsed.calls
    assert call.name == "write_file" and not parsed.malformed
    found = call.arguments
    return json.loads(found) if isinstance(found, str) else found


def same(one, other):
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


@pytest.mark.parametrize("name", FAMILIES)
@settings(deadline=None, max_examples=examples(10))
@example(text=SOURCE)
@example(text="")
@example(text="\n")
@example(text="\n\n\n")
@example(text="123")
@example(text="null")
@example(text='"quoted"')
@given(text=NASTY)
def test_a_string_by_schema_comes_back_to_the_last_character(name, text):
    offered = tools(path=typed("string"), content=typed("string"))
    for arguments in ({"content": text}, {"content": text, "path": " a.py"}):
        assert same(read(name, arguments, offered), arguments)


def not_json(constant):
    """NaN and infinities, which json.loads reads, are no values of JSON."""
    raise ValueError(constant)


def alike(text):
    """The other value that a text without a schema can mean; see `argument_value`."""
    try:
        value = json.loads(text, parse_constant=not_json)
    except ValueError:
        return text
    if text != text.strip() or isinstance(value, str):
        return text
    return value if isinstance(value, dict | list) or json.dumps(value) == text else text


@pytest.mark.parametrize("name", FAMILIES)
@settings(deadline=None, max_examples=examples(10))
@example(text=SOURCE)
@example(text='"quoted"')
@example(text="3.10")
@example(text="True")
@example(text="NaN")
@example(text="-Infinity")
@example(text="[Infinity]")
@given(text=NASTY)
def test_a_string_without_a_schema_comes_back_unless_it_reads_as_another_value(name, text):
    for offered in (None, tools()):
        wanted = text
        if name in TAGGED:
            wanted = alike(text)
        assert same(read(name, {"content": text}, offered), {"content": wanted})


PYTHON_WORDS = ("qwen3.5", "prime-qwen3", "nemotron-3", "nemotron-3-ultra", "nemotron-3.5")
SCHEMAS = {
    "anyOf": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "types": {"type": ["string", "null"]},
    "reference": {"$ref": "#/$defs/Text"},
    "enum": {"enum": ["a", None]},
}


@pytest.mark.parametrize("name", TAGGED)
@pytest.mark.parametrize("form", SCHEMAS)
def test_a_text_that_may_be_missing_is_a_text_or_missing(name, form):
    offered = tools(content=SCHEMAS[form])
    offered[0]["function"]["parameters"]["$defs"] = {"Text": SCHEMAS["types"]}
    for text in (SOURCE, "123", "true", "{}", "[]"):
        assert same(read(name, {"content": text}, offered), {"content": text})
    # Some templates write a missing value and the word None alike.
    word = "None" if name in PYTHON_WORDS else None
    assert same(read(name, {"content": None}, offered), {"content": word})


def type_of(value):
    kinds = {bool: "boolean", int: "integer", float: "number", dict: "object", list: "array"}
    return kinds.get(type(value), "null")


@pytest.mark.parametrize("name", FAMILIES)
@settings(deadline=None, max_examples=examples(10))
@example(value=True)
@example(value=None)
@example(value={"a": [" x\n", None, True]})
@given(value=JSON)
def test_any_other_value_by_schema_comes_back(name, value):
    offered = tools(content=typed(type_of(value)))
    assert same(read(name, {"content": value}, offered), {"content": value})


@pytest.mark.parametrize("name", TAGGED)
def test_a_value_that_its_schema_excludes_stays_visible_as_text(name):
    for kind in ("integer", "boolean", "array"):
        assert read(name, {"content": "up there"}, tools(content=typed(kind))) is None


# A text that holds the end of its argument and another argument.
AMBIGUOUS = {
    "qwen3.6": "a\n</parameter>\n<parameter=path>\nb",
    "glm-5": "a</arg_value><arg_key>path</arg_key><arg_value>b",
    "glm-4.5": "a</arg_value>\n<arg_key>path</arg_key>\n<arg_value>b",
    "minimax-m2": 'a</parameter>\n<parameter name="path">b',
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_two_calls_that_the_template_writes_alike_are_read_as_the_simpler_one(name):
    offered = tools(path=typed("string"), content=typed("string"))
    nested, plain = {"content": AMBIGUOUS[name]}, {"content": "a", "path": "b"}
    assert sampled(name, nested, offered) == sampled(name, plain, offered)
    assert same(read(name, nested, offered), plain)


@pytest.mark.parametrize("name", TAGGED)
def test_a_block_that_ends_within_an_argument_is_no_call(name):
    ends = {
        "minimax-m2": "</minimax:tool_call>",
        "hy3": "</tool_call:opensource>",
    }
    text = f"a{ends.get(name, '</tool_call>')}b"
    assert read(name, {"path": "a.py", "content": text}, tools(content=typed("string"))) is None


@pytest.mark.parametrize("name", TAGGED)
def test_several_calls_have_their_own_arguments(name):
    family, offered = renderer(name), tools(content=typed("string"))
    texts = (SOURCE, "\n", "</invoke> x")
    calls = tuple(
        ToolCall(f"functions.write_file:{i}", "write_file", json.dumps({"content": text}))
        for i, text in enumerate(texts)
    )
    asked = family.render(ASKED, offered).ids
    written = family.render(
        [*ASKED, ChatMessage("assistant", "Now.", tool_calls=calls)], offered, asking=False
    ).ids
    begun = common_prefix(asked, written, 0)
    parsed = family.parse(written[begun:], asked, offered)
    assert [call.arguments for call in parsed.calls] == [{"content": text} for text in texts]


@pytest.mark.parametrize("name", TAGGED)
def test_reading_takes_time_in_proportion_to_the_text(name):
    """Text that looks like the beginning of many arguments, of which none ends as it should."""
    form = TAGGED_FAMILIES[name]
    searched = 0

    class Counting(str):
        def find(self, *args):
            nonlocal searched
            start = args[1] if len(args) > 1 else 0
            found = super().find(*args)
            end = args[2] if len(args) > 2 else len(self)
            searched += (end if found < 0 else found) - start
            return found

    opening = {"<parameter=a>", '<parameter name="a">', "<arg_key>a</arg_key><arg_value>"}
    opening.add("<arg_key:opensource>a</arg_key:opensource><arg_value:opensource>")
    text = next(one for one in opening if form.arguments.opening.fullmatch(one))
    block = Counting(f"{text}x{form.arguments.closing}junk" * 2000)
    form.arguments.texts(block)
    assert searched < 3 * len(block)
