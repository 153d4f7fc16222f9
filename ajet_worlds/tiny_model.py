"""A model of 0.14 million parameters and its tokenizer, both created in seconds.

It is a real Hugging Face directory (Llama architecture, ChatML with Qwen3's tool format), so every
engine and trainer can load it. A short supervised warm-up on novices' episodes, or on example
conversations, teaches it the form of an answer; the ability itself has to be learned by
reinforcement.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet_core.errors import ConfigError
from ajet_core.files import read_json
from ajet_core.interfaces import World
from ajet_worlds.chat_template import QWEN3_CHAT_TEMPLATE
from ajet_worlds.demonstrations import (
    ChatExample,
    Demonstration,
    demonstrate,
    demonstrate_calls,
    plain_texts,
)

if TYPE_CHECKING:
    import torch

__all__ = [
    "VOCABULARY",
    "ChatExample",
    "ProgressCallback",
    "TinyModelReport",
    "WarmupProgress",
    "build_model",
    "build_tokenizer",
    "create_tiny_model",
    "qwen3_renderer",
    "save",
    "warm_up",
]

_END_OF_TEXT = "<|endoftext|>"
_END_OF_TURN = "<|im_end|>"
_SPECIAL_TOKENS = (
    _END_OF_TEXT,
    "<|im_start|>",
    _END_OF_TURN,
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)

# A renderer encodes the opening of a turn separately, a chat template together with what follows.
# No merge crosses this boundary, so that both give the same tokens. \G is the end of the last
# match. A last newline is separate too. Otherwise the same direction would be one token in the
# middle of an observation and an unrelated one at its end, and twice as hard to learn.
_TURN_OPENING = r"\G(?:user|assistant\n)|\n\z"

VOCABULARY = 512
_CORPUS_EPISODES = 200
_MAX_TOKEN_LENGTH = 24

_HIDDEN = 64
_LAYERS = 2
_HEADS = 2
_MAX_CONTEXT = 2048
# With the usual 0.02, so small a model ignores the observation during the whole warm-up.
_INITIALIZER_RANGE = 0.1

_WARMUP_EPISODES = 512
_WARMUP_BATCH = 8
_WARMUP_LEARNING_RATE = 2e-3
_WARMUP_THREADS = 2
_EXAMPLES_WARMUP_STEPS = 240
# A small loss on observations teaches the model the similarities of their words.
_CONTEXT_LOSS_WEIGHT = 0.1


@dataclass(frozen=True, slots=True)
class WarmupProgress:
    """State of the supervised warm-up; `loss` is the mean over the batch in nats per token."""

    step: int
    steps: int
    loss: float


@dataclass(frozen=True, slots=True)
class TinyModelReport:
    """The result of `create_tiny_model`.

    :param loss: loss of the last step of the warm-up; None if it had no steps.
    """

    directory: Path
    parameters: int
    vocabulary: int
    loss: float | None


ProgressCallback = Callable[[WarmupProgress], None]


def create_tiny_model(
    directory: Path,
    *,
    worlds: Sequence[World] = (),
    examples: Sequence[ChatExample] = (),
    seed: int = 0,
    hidden: int = _HIDDEN,
    warmup_steps: int | None = None,
    progress: ProgressCallback | None = None,
) -> TinyModelReport:
    """Create tokenizer and model, warm the model up, and write both to `directory`.

    The same worlds, examples, seed, size and number of steps give the same files. The directory is
    created atomically.

    :param worlds: worlds whose novices the model imitates, in equal parts.
    :param examples: conversations that it imitates as often as the episodes of one world. Show all
        words that prompts will have, and answers that are right as often as by chance.
    :param hidden: width of the model.
    :param warmup_steps: None uses the sum of the worlds' recipes, and 240 for the examples.
    :raises ConfigError: `directory` exists, required packages are not installed, or there are
        neither worlds nor examples.
    """
    if not worlds and not examples:
        raise ConfigError("a tiny model needs worlds or examples to imitate")
    if directory.exists():
        raise ConfigError(
            f"{directory} already exists and is not overwritten; choose another directory"
        )
    _require_packages()
    tokenizer = build_tokenizer(worlds, examples)
    model = build_model(tokenizer, seed, hidden)
    if warmup_steps is None:
        warmup_steps = sum(world.recipe.warmup_steps for world in worlds)
        warmup_steps += _EXAMPLES_WARMUP_STEPS if examples else 0
    loss = warm_up(
        model, tokenizer, worlds, examples, seed=seed, steps=warmup_steps, progress=progress
    )
    save(model, tokenizer, directory)
    return TinyModelReport(
        directory=directory,
        parameters=sum(p.numel() for p in model.parameters()),
        vocabulary=len(tokenizer),
        loss=loss,
    )


def _require_packages() -> None:
    """Import the packages that are needed to create a model.

    :raises ConfigError: a package is missing; the message names the extra to install.
    """
    try:
        import renderers
        import tokenizers
        import torch
        import transformers
    except ImportError as error:
        raise ConfigError(
            f"creating a tiny model requires {error.name}, which is not installed: pip "
            "install 'agentjet[demo]>=0.1'"
        ) from error
    del renderers, tokenizers, torch, transformers


def qwen3_renderer(tokenizer: Any) -> Any:
    """Return the renderer that the gateway uses for a tiny model (``renderer: qwen3``)."""
    from renderers.configs import Qwen3RendererConfig
    from renderers.qwen3 import Qwen3Renderer

    return Qwen3Renderer(tokenizer, Qwen3RendererConfig())


def build_tokenizer(worlds: Sequence[World], examples: Sequence[ChatExample] = ()) -> Any:
    """Train a byte-level BPE tokenizer on rendered episodes (a `PreTrainedTokenizerFast`).

    It does not depend on a seed, so that runs can be compared.
    """
    from tokenizers import pre_tokenizers, trainers

    # Rendering needs a tokenizer, and training a tokenizer needs rendered text: start with a
    # tokenizer without merges.
    bootstrap = _bare_tokenizer()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bootstrap.train_from_iterator(
        [],
        trainers.BpeTrainer(
            special_tokens=list(_SPECIAL_TOKENS), initial_alphabet=alphabet, show_progress=False
        ),
    )
    spelling = _wrap(bootstrap)
    special = frozenset(spelling.convert_tokens_to_ids(list(_SPECIAL_TOKENS)))
    rng = random.Random("gridwalk/corpus")  # noqa: S311 - reproducible data, not a secret
    corpus = _episodes(spelling, worlds, examples, prefix="corpus", count=_CORPUS_EPISODES, rng=rng)
    texts = (text for shown in corpus for text in plain_texts(spelling, shown.token_ids, special))
    tokenizer = _bare_tokenizer()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=list(_SPECIAL_TOKENS),
            initial_alphabet=alphabet,
            min_frequency=2,
            max_token_length=_MAX_TOKEN_LENGTH,
            show_progress=False,
        ),
    )
    return _wrap(tokenizer)


def _episodes(
    tokenizer: Any,
    worlds: Sequence[World],
    examples: Sequence[ChatExample],
    *,
    prefix: str,
    count: int,
    rng: random.Random,
) -> Iterator[Demonstration]:
    """Yield the conversations of `count` episodes of each world, and as many examples."""
    renderer = qwen3_renderer(tokenizer)
    for number in range(count):
        for world in worlds:
            yield from demonstrate(renderer, tokenizer, world, f"{prefix}-{number}", rng)
        if examples:
            example = examples[number % len(examples)]
            yield from demonstrate_calls(renderer, tokenizer, example.calls())


def _bare_tokenizer() -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE())
    # Digits are separate tokens. Otherwise "2 down" and "1 down" would be unrelated tokens.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_TURN_OPENING), behavior="isolated"),
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _wrap(tokenizer: Any) -> Any:
    from transformers import PreTrainedTokenizerFast

    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=_END_OF_TURN,
        pad_token=_END_OF_TEXT,
        clean_up_tokenization_spaces=False,
        model_max_length=_MAX_CONTEXT,
    )
    wrapped.chat_template = QWEN3_CHAT_TEMPLATE
    return wrapped


def build_model(tokenizer: Any, seed: int, hidden: int = _HIDDEN) -> Any:
    """Create the untrained model (a `LlamaForCausalLM`); its weights depend only on `seed`.

    It is not a Qwen model, although it uses Qwen3's format: for ``qwen2``, transformers 5 ignores
    the pre-tokenizer of the directory and uses its own, which gives other tokens.
    """
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    ends = [tokenizer.convert_tokens_to_ids(t) for t in (_END_OF_TURN, _END_OF_TEXT)]
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=_LAYERS,
        num_attention_heads=_HEADS,
        num_key_value_heads=_HEADS,
        head_dim=hidden // _HEADS,
        max_position_embeddings=_MAX_CONTEXT,
        initializer_range=_INITIALIZER_RANGE,
        tie_word_embeddings=True,
        attention_dropout=0.0,
        bos_token_id=None,
        eos_token_id=ends[0],
        pad_token_id=ends[1],
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=1.0, eos_token_id=ends, pad_token_id=ends[1]
    )
    return model


def warm_up(
    model: Any,
    tokenizer: Any,
    worlds: Sequence[World],
    examples: Sequence[ChatExample] = (),
    *,
    seed: int,
    steps: int,
    progress: ProgressCallback | None = None,
) -> float | None:
    """Train on demonstrations, in place, and return the last loss.

    Runs on two threads at most: the model is too small to benefit from more. Their number does not
    change the result.
    """
    import torch

    rng = random.Random(f"gridwalk/warm-up/{seed}")  # noqa: S311 - reproducible data, not a secret
    prefix = f"warm-up-{seed}"
    shown = list(
        _episodes(tokenizer, worlds, examples, prefix=prefix, count=_WARMUP_EPISODES, rng=rng)
    )
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=_WARMUP_LEARNING_RATE,
        betas=(0.9, 0.98),
        weight_decay=0.0,
        fused=True,
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(min(threads, _WARMUP_THREADS))
    model.train()
    value: float | None = None
    try:
        for step in range(1, steps + 1):
            for group in optimizer.param_groups:
                group["lr"] = _WARMUP_LEARNING_RATE * min(1.0, step / 10)
            loss = _loss(model, rng.sample(shown, _WARMUP_BATCH))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            value = float(loss.detach())
            if progress is not None:
                progress(WarmupProgress(step=step, steps=steps, loss=value))
    finally:
        model.eval()
        torch.set_num_threads(threads)
    return value


def _loss(model: Any, shown: list[Demonstration]) -> torch.Tensor:
    """Return the weighted mean cross entropy of the next token over all conversations."""
    import torch
    from torch.nn import functional

    length = max(len(one.token_ids) for one in shown)
    ids = torch.zeros(len(shown), length, dtype=torch.long)
    weights = torch.zeros(len(shown), length)
    for row, one in enumerate(shown):
        here = len(one.token_ids)
        ids[row, :here] = torch.tensor(one.token_ids)
        weights[row, :here] = torch.where(torch.tensor(one.sampled), 1.0, _CONTEXT_LOSS_WEIGHT)
    # The conversations of a world begin with the same prompt, about half of their tokens. It is
    # computed once; only its last token is computed with the rest, because other tokens follow.
    same = max(0, int((ids == ids[0]).all(0).cumprod(0).sum()) - 1)
    losses = []
    cache = None
    if same:
        start = model(input_ids=ids[:1, :same], use_cache=True)
        cache = start.past_key_values
        cache.batch_repeat_interleave(len(shown))
        alike = functional.cross_entropy(start.logits[0], ids[0, 1 : same + 1], reduction="none")
        losses.append(alike * weights[:, 1 : same + 1].sum(0))
    # Right padding needs no attention mask, because attention is causal and padding has no loss.
    logits = model(input_ids=ids[:, same:], past_key_values=cache, use_cache=bool(same)).logits
    rest = functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), ids[:, same + 1 :].flatten(), reduction="none"
    )
    losses.append(rest * weights[:, same + 1 :].flatten())
    return torch.cat(losses).sum() / weights[:, 1:].sum()


def save(model: Any, tokenizer: Any, directory: Path) -> None:
    """Write a Hugging Face directory atomically."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        with _without_progress_bars():
            model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        _name_tokenizer_class(temporary / "tokenizer_config.json")
        temporary.chmod(0o755)
        temporary.rename(directory)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _name_tokenizer_class(path: Path) -> None:
    """Set the class name that transformers 4 and 5 both know; 5 writes a name that 4 does not."""
    config = read_json(path)
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


@contextlib.contextmanager
def _without_progress_bars() -> Iterator[None]:
    """Disable progress bars, which transformers would draw into the demo's output."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
