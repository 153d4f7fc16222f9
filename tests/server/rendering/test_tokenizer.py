import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from ajet_core.errors import ModelDirectoryError
from ajet_server.gateway.rendering.tokenizer import load_tokenizer, token_bytes
from ajet_testing.tokenizers import SPECIALS, tokenizer_for, train, write_model
from tests.support.tiers import examples

TEXTS = st.text() | st.lists(
    st.sampled_from([*SPECIALS["qwen3"], "Move up", " \n", "é", "😀"])
).map("".join)


@pytest.fixture(scope="module")
def reference():
    return PreTrainedTokenizerFast(tokenizer_object=train(SPECIALS["qwen3"]))


@given(text=TEXTS)
@settings(max_examples=examples(80), deadline=None)
def test_ids_and_text_are_those_of_transformers(reference, text):
    tokenizer = tokenizer_for("qwen3")
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids == reference.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == reference.decode(ids, clean_up_tokenization_spaces=False)


def test_directory_is_read_as_transformers_reads_it(tmp_path):
    directory = write_model(tmp_path / "m", "qwen3")
    tokenizer: Any = load_tokenizer(directory)
    reference = PreTrainedTokenizerFast.from_pretrained(directory)
    assert tokenizer.eos_token_id == reference.eos_token_id == 2
    assert tokenizer.unk_token_id is reference.unk_token_id is None
    assert tokenizer.convert_tokens_to_ids("<think>") == 3
    assert tokenizer.convert_tokens_to_ids(["<think>", "no such token"]) == [3, None]
    assert len(tokenizer) == len(reference)


def test_truncation_and_padding_of_the_file_are_not_applied(tmp_path):
    backend = train(SPECIALS["qwen3"])
    backend.enable_truncation(4)
    backend.enable_padding(length=16)
    backend.save(str(tmp_path / "tokenizer.json"))
    text = "Where is the goal? Move up, then left."
    assert load_tokenizer(tmp_path).encode(text) == tokenizer_for("qwen3").encode(text)


def test_returned_ids_belong_to_the_caller():
    tokenizer = tokenizer_for("qwen3")
    tokenizer.encode("user").append(0)
    assert tokenizer.encode("user")[-1] != 0


@pytest.mark.processes
def test_fast_tokenizer_needs_no_transformers(tmp_path):
    write_model(tmp_path, "qwen3")
    code = (
        "import sys; from pathlib import Path\n"
        "from ajet_core.protocol.run import ModelConfig\n"
        "from ajet_server.gateway.rendering.factory import make_renderer\n"
        f"make_renderer(ModelConfig(path='m', renderer='qwen3'), Path({str(tmp_path)!r}))\n"
        "assert 'transformers' not in sys.modules and 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_missing_tokenizer_is_named(tmp_path):
    with pytest.raises(ModelDirectoryError, match=r"neither tokenizer\.json nor tokenizer\.model"):
        load_tokenizer(tmp_path)


def test_broken_tokenizer_file_is_named(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelDirectoryError, match=r"tokenizer\.json is not a usable tokenizer"):
        load_tokenizer(tmp_path)


def test_broken_tokenizer_config_is_named(tmp_path):
    write_model(tmp_path, "qwen3")
    (tmp_path / "tokenizer_config.json").write_text("[1]")
    with pytest.raises(
        ModelDirectoryError, match=r"tokenizer_config\.json does not contain a JSON object"
    ):
        load_tokenizer(tmp_path)


@given(text=st.text(min_size=1))
@settings(max_examples=examples(50), deadline=None)
def test_token_bytes_add_up_to_the_text(text):
    tokenizer = tokenizer_for("qwen3")
    data = b"".join(
        token_bytes(tokenizer, i, tokenizer.decode([i])) for i in tokenizer.encode(text)
    )
    assert data == text.encode()
