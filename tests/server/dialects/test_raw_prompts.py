"""Prompts of `/v1/completions`: texts and tokens that no template changes."""

from __future__ import annotations

import copy
import json
import threading
from typing import Any

import pytest

from ajet_server.gateway.formats.completions import read_completions_request
from ajet_testing.tokenizers import renderer_for
from tests.server.dialects.scripted import Gateway, ScriptedEngine


@pytest.mark.parametrize("count", [10, 20_000])
async def test_a_long_text_is_encoded_off_the_event_loop(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    renderer = copy.copy(renderer_for("qwen3"))
    threads: list[threading.Thread] = []

    def encode(text: str) -> list[int]:
        threads.append(threading.current_thread())
        return renderer_for("qwen3").encode(text)

    monkeypatch.setattr(renderer, "encode", encode)
    gate = Gateway(ScriptedEngine([[1, 2]]), renderer, max_context=100_000)
    text = "word " * count
    request, _ = read_completions_request(json.dumps({"prompt": text, "max_tokens": 5}).encode())
    exchange: Any = await gate.service.completions.begin(gate.session, request, gate.record)
    assert list(exchange.prompt.ids) == renderer_for("qwen3").encode(text)
    loops = threads[0] is threading.main_thread()
    assert loops == (len(text) <= renderer.quick_characters)
