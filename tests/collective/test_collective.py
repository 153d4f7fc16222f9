"""Weights broadcast between a real sender and receivers that join as a model server does."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from ajet_core.errors import EngineError, TrainerError, WeightsGoneError
from ajet_core.interfaces import WeightUpdate
from ajet_engines.collective import (
    WeightReceiver,
    WeightSender,
    tensors_of,
)
from ajet_engines.collective.wire import Send, encoded
from ajet_engines.served import check_update
from ajet_testing.weights.broadcast import ThreadedMember

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype
        assert torch.equal(tensor, other[name]), name


def make_model(seed: int, dtype: str = "float32", **sizes: Any) -> Any:
    from transformers import AutoModelForCausalLM, Qwen2Config

    torch.manual_seed(seed)
    config = {
        "vocab_size": 32,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "tie_word_embeddings": True,
    }
    module = AutoModelForCausalLM.from_config(Qwen2Config(**{**config, **sizes}))
    return module.to(getattr(torch, dtype))


def files_of(module: Any, directory: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    module.save_pretrained(directory)
    return load_file(directory / "model.safetensors")


@pytest_asyncio.fixture
async def sender() -> AsyncIterator[WeightSender]:
    sender = WeightSender()
    yield sender
    await asyncio.to_thread(sender.close)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tied", [True, False])
async def test_what_arrives_is_what_files_would_hold(
    sender: WeightSender, tmp_path: Path, dtype: str, tied: bool
) -> None:
    module = make_model(0, dtype, tie_word_embeddings=tied)
    process = ThreadedMember()
    update = sender.publish(module, 3)
    await WeightReceiver(process).receive(update)
    assert (update.channel, update.policy_version) == ("collective", 3)
    assert_same(process.received, files_of(module, tmp_path / "model"))
    check_update(update, tmp_path / "model")


async def test_each_server_has_a_group_of_its_own_and_keeps_it(sender: WeightSender) -> None:
    processes = [ThreadedMember(), ThreadedMember(ranks=2)]
    receivers = [WeightReceiver(process) for process in processes]
    for version in range(3):
        module = make_model(version)
        update = sender.publish(module, version)
        await asyncio.gather(*(receiver.receive(update) for receiver in receivers))
        for process in processes:
            assert process.received.keys() == {spec.name for spec in tensors_of(update)}
            expected = dict(module.state_dict())
            assert_same(process.received, {name: expected[name] for name in process.received})
    assert [process.joined for process in processes] == [1, 1]


async def test_what_is_sent_is_as_it_was_published(sender: WeightSender) -> None:
    module = make_model(0)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    update = sender.publish(module, 1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1.0)
    process = ThreadedMember()
    await WeightReceiver(process).receive(update)
    assert_same(process.received, {name: before[name] for name in process.received})


async def test_another_sender_makes_another_group(sender: WeightSender) -> None:
    process = ThreadedMember()
    receiver = WeightReceiver(process)
    await receiver.receive(sender.publish(make_model(0), 1))
    following = WeightSender()
    try:
        module = make_model(1)
        await receiver.receive(following.publish(module, 2))
        expected = module.state_dict()
        assert_same(process.received, {name: expected[name] for name in process.received})
        assert (process.joined, process.left) == (2, 1)
    finally:
        await asyncio.to_thread(following.close)


async def test_a_sender_that_is_gone_is_told_from_one_that_fails(sender: WeightSender) -> None:
    update = sender.publish(make_model(0), 1)
    await asyncio.to_thread(sender.close)
    process = ThreadedMember()
    with pytest.raises(WeightsGoneError, match="no longer sends weights at tcp://127"):
        await WeightReceiver(process).receive(update)
    assert process.joined == 0


async def test_versions_that_are_not_offered_any_more_leave_the_server_as_it_is(
    sender: WeightSender,
) -> None:
    old = sender.publish(make_model(0), 1)
    latest = sender.publish(make_model(1), 2)
    process = ThreadedMember()
    receiver = WeightReceiver(process)
    with pytest.raises(WeightsGoneError, match="policy version 1 are no longer available"):
        await receiver.receive(old)
    assert not process.received
    await receiver.receive(latest)
    assert process.received
    assert process.joined == 1


async def test_a_sender_that_dies_between_two_updates_leaves_the_server_as_it_is(
    sender: WeightSender,
) -> None:
    process = ThreadedMember()
    receiver = WeightReceiver(process)
    update = sender.publish(make_model(0), 1)
    await receiver.receive(update)
    process.received = {}
    await asyncio.to_thread(sender.close)
    with pytest.raises(WeightsGoneError):
        await receiver.receive(update)
    assert not process.received


async def test_a_connection_that_was_cut_between_two_updates_is_made_again(
    sender: WeightSender,
) -> None:
    process = ThreadedMember()
    receiver = WeightReceiver(process)
    await receiver.receive(sender.publish(make_model(0), 1))
    process.received = {}
    assert receiver._writer is not None
    receiver._writer.transport.abort()
    await receiver.receive(sender.publish(make_model(1), 2))
    assert process.received
    assert process.joined == 2


async def test_a_receiver_that_is_given_up_while_it_asks_takes_no_old_answer_for_a_new_one(
    sender: WeightSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = ThreadedMember()
    receiver = WeightReceiver(process)
    await receiver.receive(sender.publish(make_model(0), 1))
    process.received = {}
    asked = asyncio.Event()

    async def endless(*_: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(receiver, "_answer", endless)
        receiving = asyncio.create_task(receiver.receive(sender.publish(make_model(1), 2)))
        await asked.wait()
        receiving.cancel()
        await asyncio.wait([receiving])
    assert receiving.cancelled()
    await receiver.receive(sender.publish(make_model(0), 3))
    assert process.received


async def test_a_receiver_that_is_closed_has_its_server_leave(sender: WeightSender) -> None:
    process = ThreadedMember()
    receiver = WeightReceiver(process)
    await receiver.receive(sender.publish(make_model(0), 1))
    await receiver.close()
    assert process.left == 1
    await receiver.close()
    assert process.left == 1


async def test_a_token_in_another_script_is_as_wrong_as_any(sender: WeightSender) -> None:
    update = sender.publish(make_model(0), 1)
    odd = replace(update, metadata={**update.metadata, "token": "\u043a\u043b\u044e\u0447"})
    with pytest.raises(EngineError, match="token is not the sender's"):
        await WeightReceiver(ThreadedMember()).receive(odd)


async def test_only_who_has_the_token_is_answered(sender: WeightSender) -> None:
    update = sender.publish(make_model(0), 1)
    stolen = replace(update, metadata={**update.metadata, "token": "guessed"})
    process = ThreadedMember()
    with pytest.raises(EngineError, match="token is not the sender's"):
        await WeightReceiver(process).receive(stolen)
    assert process.joined == 0


@pytest.mark.parametrize(
    "line",
    [
        b"GET / HTTP/1.1\r\n",
        encoded(Send(policy_version=1)),
        b"{" * (1 << 17) + b"\n",
        b"",
        json.dumps({"kind": "join", "token": "x", "ranks": 10**9, "backends": ["gloo"]}).encode(),
    ],
)
async def test_nonsense_ends_its_own_connection_alone(sender: WeightSender, line: bytes) -> None:
    update = sender.publish(make_model(0), 1)
    port = int(update.location.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    told = b""
    # It hangs up on what is too long while there is more to come.
    with contextlib.suppress(OSError):
        writer.write(line)
        writer.write_eof()
        told = await reader.read()
    assert not told or b'"failed"' in told
    writer.close()
    process = ThreadedMember()
    await WeightReceiver(process).receive(update)
    assert process.received


async def test_a_server_that_cannot_join_keeps_nobody_waiting(sender: WeightSender) -> None:
    update = sender.publish(make_model(0), 1)
    process = ThreadedMember()
    process.fails = True
    receiver = WeightReceiver(process)
    with pytest.raises(EngineError, match="cannot join"):
        await receiver.receive(update)
    process.fails = False
    await receiver.receive(update)
    assert process.received


async def test_without_a_backend_in_common_it_says_so(sender: WeightSender) -> None:
    if torch.cuda.is_available():
        pytest.skip("NCCL may be there")
    update = sender.publish(make_model(0), 1)
    with pytest.raises(EngineError, match=r"no collective backend in common.*nccl"):
        await WeightReceiver(ThreadedMember(backends=["nccl"])).receive(update)
    await WeightReceiver(ThreadedMember(backends=["nccl", "gloo"])).receive(update)


def test_an_address_of_another_machine_is_refused() -> None:
    # Reserved for documentation: no machine has it.
    with pytest.raises(TrainerError, match=r"set workers\.collective_host"):
        WeightSender("192.0.2.1").publish(make_model(0), 1)


def test_a_model_of_other_shapes_is_refused_before_any_server_hears_of_it(tmp_path: Path) -> None:
    files_of(make_model(0), tmp_path / "model")
    sender = WeightSender()
    try:
        update = sender.publish(make_model(0, intermediate_size=48), 1)
        with pytest.raises(
            EngineError, match=r"to another model than .*mlp.* \(6 tensors differ\)"
        ):
            check_update(update, tmp_path / "model")
    finally:
        sender.close()


def test_an_update_without_tensors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="lists no tensors"):
        check_update(WeightUpdate("collective", 1, "tcp://127.0.0.1:1"), tmp_path)


def test_many_senders_leave_nothing_behind() -> None:
    import threading

    before = threading.active_count()
    for _ in range(5):
        sender = WeightSender()
        sender.publish(make_model(0), 1)
        sender.close()
        sender.close()
    assert threading.active_count() == before
