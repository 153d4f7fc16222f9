"""Long texts are encoded in processes of their own."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from ajet_server.gateway.rendering.encoder_processes import EncoderProcesses
from ajet_server.gateway.rendering.tokenizer import FastTokenizer, load_tokenizer
from ajet_testing.tokenizers import tokenizer_for, write_model

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

TEXTS = [
    "",
    "a few words",
    "多语言 ünïcödé 🤖 \x00\x1a\n\r\t <|im_start|>user<|im_end|>",
    "def f(x):\n    return x\n" * 10_000,
]
CHILDREN = """
import sys, time
from pathlib import Path
from ajet_server.gateway.rendering.encoder_processes import EncoderProcesses
processes = EncoderProcesses(Path(sys.argv[1]))
processes.encode("text")
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    write_model(directory, "qwen3")
    return directory / "tokenizer.json"


def children() -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children()
        if "ajet_server.gateway.rendering.encoder_processes" in child.cmdline()
    ]


@pytest.mark.parametrize("text", TEXTS)
def test_the_tokens_are_those_of_this_process(path: Path, text: str) -> None:
    ids = EncoderProcesses(path).encode(text)
    assert ids is not None
    assert ids.tolist() == tokenizer_for("qwen3").encode(text)


def test_many_threads_get_their_own_tokens(path: Path) -> None:
    processes = EncoderProcesses(path)
    texts = [f"{number} " * 20_000 for number in range(24)]
    plain = tokenizer_for("qwen3")
    with ThreadPoolExecutor(3) as pool:
        encoded = list(pool.map(processes.encode, texts))
    assert [ids and ids.tolist() for ids in encoded] == [plain.encode(text) for text in texts]
    assert len(children()) <= 3


def test_half_of_a_surrogate_pair_is_left_to_the_caller(path: Path) -> None:
    processes = EncoderProcesses(path)
    assert processes.encode("\ud800") is None
    assert processes.encode("text") is not None


def test_one_that_is_killed_is_replaced(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    processes = EncoderProcesses(path)
    known = processes.encode("text")
    (child,) = children()
    child.kill()
    child.wait()
    assert processes.encode("text") is None
    assert "a process that encodes long texts failed" in caplog.text
    assert processes.encode("text") == known


def test_one_that_does_not_answer_is_replaced(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    processes = EncoderProcesses(path)
    known = processes.encode("text")
    (child,) = children()
    child.suspend()
    (encoder,) = processes._idle
    encoder._socket.settimeout(0.2)
    assert processes.encode("text") is None
    assert "timed out" in caplog.text
    assert not child.is_running()
    assert processes.encode("text") == known


def test_one_that_cannot_start_is_not_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    processes = EncoderProcesses(tmp_path / "tokenizer.json")
    assert processes.encode("text") is None
    assert processes.encode("text") is None
    assert caplog.text.count("a process that encodes long texts failed") == 1


def test_a_start_that_fails_does_not_end_the_use_of_others(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = EncoderProcesses(path)
    known = processes.encode("text")
    working = processes._idle.pop()
    with monkeypatch.context() as patch:
        patch.setattr("sys.executable", "/no/such/file")
        assert processes.encode("text") is None
    processes._idle.append(working)
    assert processes.encode("text") == known


def test_few_processes_are_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ajet_server.gateway.rendering.encoder_processes.MOST_ENCODERS", 1)
    processes = EncoderProcesses(path)
    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(processes.encode, ["word " * 50_000] * 6))
    assert len(children()) == 1


def test_a_tokenizer_encodes_only_its_longest_texts_in_processes(path: Path) -> None:
    tokenizer = load_tokenizer(path.parent)
    assert isinstance(tokenizer, FastTokenizer)
    plain = tokenizer_for("qwen3")
    short, long = "word " * 2_000, "word " * 20_000
    assert tokenizer.encode(short) == plain.encode(short)
    assert tokenizer.long_texts.encode(short).tolist() == plain.encode(short)
    assert children() == []
    assert tokenizer.encode(long) == plain.encode(long)
    assert len(children()) == 1
    assert tokenizer.long_texts.encode(long).tolist() == plain.encode(long)
    # It works without them, too.
    children()[0].kill()
    other = "words " * 20_000
    assert tokenizer.encode(other) == plain.encode(other)


def test_they_end_with_their_owner(path: Path) -> None:
    processes = EncoderProcesses(path)
    processes.encode("text")
    (child,) = children()
    del processes
    gc.collect()
    assert not child.is_running()


def test_they_end_when_this_process_is_killed(path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", CHILDREN, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "ready\n"
    (child,) = psutil.Process(parent.pid).children()
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    child.wait(60)
