"""What ``ajet gpu-check`` runs in the interpreter of a backend.

It is called as ``python -m ajet_torch.on_device COMMAND``. The commands are ``facts`` (versions and
devices), ``model DIRECTORY SIZE`` (write a model with random weights) and ``nccl`` (broadcast a
tensor between all devices). Each prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import socket
import time
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from ajet_engines.collective.sender import meet
from ajet_engines.collective.wire import Group

SIZES = {
    "tiny": (64, 2, 4, 2, 192, 512),
    "0.5b": (896, 24, 14, 2, 4864, 151936),
    "1.5b": (1536, 28, 12, 2, 8960, 151936),
}
"""Hidden size, layers, heads, key-value heads, intermediate size and vocabulary of Qwen2 models."""

_POSITIONS = 4096
_PACKAGES = ("torch", "transformers", "trl", "verl", "vllm", "sglang", "ray", "flash-attn")
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_BROADCAST_FLOATS = 2**26
_LOOPBACK = "127.0.0.1"


def facts() -> dict[str, Any]:
    """Return versions of installed packages, and the devices that torch sees."""
    packages = {}
    for name in _PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    devices = []
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            devices.append(
                {
                    "name": properties.name,
                    "capability": f"{properties.major}.{properties.minor}",
                    "memory_gib": round(properties.total_memory / 2**30, 1),
                }
            )
    return {"packages": packages, "cuda": torch.version.cuda, "devices": devices}


def write_random_model(directory: Path, size: str) -> int:
    """Write a Qwen2 model with random weights in bfloat16 and a tokenizer of single bytes.

    :param size: a key of `SIZES`.
    :return: its number of parameters.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    hidden, layers, heads, kv_heads, intermediate, vocabulary = SIZES[size]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytewise = Tokenizer(models.BPE({byte: i for i, byte in enumerate(alphabet)}, []))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytewise.decoder = decoders.ByteLevel()
    bytewise.add_special_tokens([AddedToken(token, special=True) for token in _SPECIAL])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bytewise, eos_token=_SPECIAL[2], pad_token=_SPECIAL[0]
    )
    tokenizer.chat_template = _CHAT_TEMPLATE
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=intermediate,
        max_position_embeddings=_POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen2ForCausalLM(config).to(torch.bfloat16)
    # An interrupted call leaves no directory that looks complete.
    unfinished = directory.with_name(f"{directory.name}.unfinished")
    model.save_pretrained(unfinished)
    tokenizer.save_pretrained(unfinished)
    unfinished.rename(directory)
    return sum(p.numel() for p in model.parameters())


def broadcast_between_devices() -> dict[str, Any]:
    """Broadcast 256 MiB from the first device to all others, as the channel ``collective`` does.

    With one device, the group has one member. Without any, two processes use gloo.

    :return: ``backend``, ``members``, ``equal``: whether every member has the sender's tensor, and
        with several members ``gib_per_second``.
    :raises RuntimeError: a member failed.
    """
    cuda = torch.cuda.is_available()
    members = torch.cuda.device_count() if cuda else 2
    with socket.create_server((_LOOPBACK, 0)) as unused:
        port = unused.getsockname()[1]
    group = Group(
        name="gpu-check",
        backend="nccl" if cuda else "gloo",
        host=_LOOPBACK,
        port=port,
        world_size=members,
    )
    # Results come in the order in which members end, so that the first failure is raised although
    # others still wait for the member that failed.
    with multiprocessing.get_context("spawn").Pool(members) as pool:
        ended = list(pool.imap_unordered(partial(_member, group), range(members)))
    totals = {total for _, total in ended}
    result: dict[str, Any] = {
        "backend": group.backend,
        "members": members,
        "equal": len(totals) == 1,
    }
    if members > 1:
        slowest = max(seconds for seconds, _ in ended)
        result["gib_per_second"] = round(_floats(group) * 4 / 2**30 / slowest, 2)
    return result


def _floats(group: Group) -> int:
    return _BROADCAST_FLOATS if group.backend == "nccl" else _BROADCAST_FLOATS // 64


def _member(group: Group, rank: int) -> tuple[float, float]:
    """Take part in two broadcasts; return the seconds of the second, and the sum of its tensor."""
    from torch import distributed

    cuda = group.backend == "nccl"
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    store, members = meet(group, rank, None)
    options = distributed.BroadcastOptions()
    options.rootRank = 0
    generator = torch.Generator(device).manual_seed(rank)
    seconds = 0.0
    for _ in range(2):
        tensor = torch.rand(_floats(group), device=device, generator=generator)
        began = time.perf_counter()
        members.broadcast([tensor], options).wait()
        if cuda:
            torch.cuda.synchronize(device)
        seconds = time.perf_counter() - began
    # The store has to exist until the group is done.
    assert store is not None
    return seconds, float(tensor.double().sum())


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("facts")
    model = commands.add_parser("model")
    model.add_argument("directory", type=Path)
    model.add_argument("size", choices=sorted(SIZES))
    commands.add_parser("nccl")
    options = parser.parse_args()
    if options.command == "facts":
        printed = facts()
    elif options.command == "model":
        printed = {"parameters": write_random_model(options.directory, options.size)}
    else:
        printed = broadcast_between_devices()
    print(json.dumps(printed))  # noqa: T201 - its output is its result


if __name__ == "__main__":
    main()
