"""What tokens say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models

from ajet_server.page.token_texts import TokenTexts
from ajet_server.page.visible_text import shorten, visible
from tests.inspect.recorded import Recording


def test_tokens_that_are_part_of_a_character_are_bytes(recording: Recording) -> None:
    texts = TokenTexts.load(recording.model_dir)
    ids = recording.ids("\u00e9")
    assert [texts.piece(each) for each in ids] == [b"\xc3", b"\xa9"]
    assert texts.text(ids) == "\u00e9"


def test_special_tokens_are_spelled_out(recording: Recording) -> None:
    texts = TokenTexts.load(recording.model_dir)
    assert texts.text(recording.ids("<|im_end|>")) == "<|im_end|>"


@pytest.mark.parametrize("token_id", [10**6, 2**32 - 1])
def test_an_id_that_the_tokenizer_lacks_has_no_text(recording: Recording, token_id: int) -> None:
    texts = TokenTexts.load(recording.model_dir)
    assert texts.piece(token_id) is None
    assert texts.text([token_id]) == f"<{token_id}>"


def test_a_sentencepiece_word_keeps_its_space(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"\u2581hello": 0, "\u2581you": 1, "<0xC3>": 2}, "x"))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.Strip(" ", left=1)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    texts = TokenTexts.load(tmp_path)
    assert texts.text([0, 1]) == " hello you"


def test_a_model_that_is_gone_is_named(tmp_path: Path) -> None:
    texts = TokenTexts.load(tmp_path / "gone")
    assert str(tmp_path / "gone") in texts.problem
    assert texts.text([3, 4]) == "<3><4>"


def test_a_directory_without_a_tokenizer_is_a_problem_and_no_error(tmp_path: Path) -> None:
    assert "has no tokenizer" in TokenTexts.load(tmp_path).problem


def test_a_run_without_a_model_says_so() -> None:
    assert "no run was configured" in TokenTexts.load(None).problem


@pytest.mark.processes
def test_loading_it_imports_no_model_library(recording: Recording) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from ajet_server.page.token_texts import TokenTexts\n"
        f"assert TokenTexts.load(Path({str(recording.model_dir)!r})).text([0])\n"
        "print(sorted({'torch', 'transformers', 'starlette'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "[]\n", done.stderr


def test_nothing_that_a_terminal_obeys_is_left() -> None:
    shown = visible("a\x1b[2J\u202eb\r\n\tc\ud800\u200b\x9b")
    assert shown == "a\\u001b[2J\\u202eb\\u000d\u21b5\u21e5c\\ud800\\u200b\\u009b"
    assert visible("a\n\t\r\x1b", keep="\n\t") == "a\n\t\\u000d\\u001b"
    assert visible("a\n") == "a\u21b5"


def test_long_text_keeps_its_ends() -> None:
    assert shorten("abcdefghijkl", 9) == "abcd...kl"
    assert shorten("abc", 3) == "abc"
