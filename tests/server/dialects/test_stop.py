import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet_server.gateway.formats.stopping import StopScanner
from ajet_testing.tokenizers import renderer_for
from tests.server.dialects.scripted import CALL_TEXT, MOVE, USER, assembled, gateway
from tests.support.tiers import examples


async def test_text_ends_before_the_stop_string_and_tokens_with_it():
    gate = gateway("go up and down<|im_end|>")
    completion = await gate.complete(USER, stop="and")
    choice = completion.choices[0]
    assert (choice.message.content, choice.finish_reason) == ("go up", "stop")
    call = gate.calls[0]
    assert gate.renderer.decode(call.sampled_ids).endswith("and")
    assert "and" not in gate.renderer.decode(call.sampled_ids[:-1])
    assert completion.usage.completion_tokens == len(call.sampled_ids) == len(call.logprobs)


async def test_engine_is_stopped_at_once():
    gate = gateway("go up and down" * 20)
    await gate.complete(USER, stop=["never", "up"])
    assert gate.engine.produced < 10
    assert gate.engine.closed == [gate.calls[0].call_id]
    assert gate.engine.requests[0].stream


async def test_engine_that_answers_in_one_piece():
    gate = gateway("go up and down<|im_end|>", per_chunk=1000)
    choice = (await gate.complete(USER, stop=["down", "and"])).choices[0]
    assert choice.message.content == "go up"
    assert gate.renderer.decode(gate.calls[0].sampled_ids).endswith("and")


async def test_a_call_before_the_stop_string_counts_as_stopped():
    gate = gateway(f"{CALL_TEXT}Observation: 2 down<|im_end|>")
    choice = (await gate.complete(USER, stop="Observation:", tools=[MOVE])).choices[0]
    assert choice.finish_reason == "stop"
    assert choice.message.tool_calls[0].function.name == "move"


async def test_stop_string_that_does_not_come():
    choice = (await gateway("go up<|im_end|>").complete(USER, stop="upx")).choices[0]
    assert (choice.message.content, choice.finish_reason) == ("go up", "stop")


@pytest.mark.parametrize("stop", ["END", "😀", "ND"])
async def test_nothing_of_a_stop_string_is_streamed(stop):
    gate = gateway("go 🎉 EN END 😀 up<|im_end|>")
    chunks = await gate.chunks(USER, stop=stop)
    expected = "go 🎉 EN END 😀 up".partition(stop)[0].strip()
    assert assembled(chunks)["content"] == expected


@given(
    text=st.text("ab😀é ", min_size=1, max_size=30),
    stops=st.lists(st.text("ab😀é", min_size=1, max_size=4), min_size=1, max_size=3),
)
@settings(max_examples=examples(300), deadline=None)
def test_cut_is_at_the_first_stop_string_wherever_tokens_end(text, stops):
    renderer = renderer_for("qwen3")
    scanner = StopScanner(renderer, tuple(stops))
    for token_id in renderer.encode(text):
        if scanner.push(token_id):
            break
        visible = renderer.decode(scanner.certain()).rstrip("\ufffd")
        assert text.startswith(visible)
        assert not any(stop in visible for stop in stops)
    else:
        scanner.flush()
    at = min((text.find(stop) for stop in stops if stop in text), default=None)
    if at is None:
        assert scanner.cut is None
        assert renderer.decode(scanner.before_cut()) == text
    else:
        # A token may complete several stop strings; the text ends before the first of them.
        assert scanner.cut is not None
        assert scanner.cut <= max(at, 0) + 4
        assert renderer.decode(scanner.before_cut()) == text[: scanner.cut]
        assert any(text.startswith(stop, scanner.cut) for stop in stops)
        done = renderer.decode(scanner._ids)
        assert scanner.cut == min(done.find(stop) for stop in stops if stop in done)
