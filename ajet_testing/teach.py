"""Train a tiny model on recorded answers: `teach.py LESSON TOKENIZER MODEL SEED`.

:LESSON: JSON, a list of calls with ``prompt_ids`` and ``sampled_ids``.
:TOKENIZER: its directory.
:MODEL: the directory that is written.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import torch
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

STEPS, MOST_STEPS = 200, 600
"""At least, and at most: between them it ends after the loss has stopped to fall."""
COOLDOWN = 50
"""Last steps, in which the learning rate falls to 0."""
_SPAN = 25
BATCH = 6
LEARNING_RATE = 4e-3
BETAS = (0.9, 0.95)
"""A long answer is well-formed only if all its tokens are nearly certain, so training continues
when losses are already small. PyTorch's 0.999 would remember the large gradients of the first
steps, and make these last steps tiny."""


def teach(lesson: Path, tokenizer_directory: Path, directory: Path, seed: int = 0) -> float:
    """Train the model, and return the last loss in nats per sampled token.

    :param seed: of the first weights and of the order of calls.
    """
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    calls = json.loads(lesson.read_text())
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tokenizer_directory)
    longest = max(len(call["prompt_ids"]) + len(call["sampled_ids"]) for call in calls)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=192,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=max(2048, 2 * longest),
            initializer_range=0.1,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
            pad_token_id=tokenizer.convert_tokens_to_ids("<|endoftext|>"),
            dtype="float32",
        )
    )
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=BETAS, weight_decay=0.0
    )
    rng = random.Random(seed)  # noqa: S311 - not for security
    values: list[float] = []
    end = MOST_STEPS
    while len(values) < end:
        rate = min(1.0, (len(values) + 1) / 10, (end - len(values)) / COOLDOWN)
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * rate
        loss = _loss(model, rng.sample(calls, min(BATCH, len(calls))))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        values.append(float(loss.detach()))
        if end == MOST_STEPS and len(values) >= STEPS - COOLDOWN and _is_flat(values):
            end = min(end, len(values) + COOLDOWN)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return values[-1]


def _is_flat(values: list[float]) -> bool:
    """Return whether losses have stopped to fall."""
    before, last = values[-2 * _SPAN : -_SPAN], values[-_SPAN:]
    return sum(last) > 0.9 * sum(before)


def _loss(model: LlamaForCausalLM, calls: list[dict[str, list[int]]]) -> torch.Tensor:
    """Return the mean cross entropy of the sampled tokens."""
    losses = []
    for call in calls:
        prompt, sampled = call["prompt_ids"], call["sampled_ids"]
        ids = torch.tensor([prompt + sampled])
        hidden = model.model(input_ids=ids).last_hidden_state[0, len(prompt) - 1 : -1]
        losses.append(functional.cross_entropy(model.lm_head(hidden), ids[0, len(prompt) :]))
    return torch.stack(losses).mean()


if __name__ == "__main__":
    its_lesson, its_tokenizer, its_model, its_seed = sys.argv[1:]
    last = teach(Path(its_lesson), Path(its_tokenizer), Path(its_model), int(its_seed))
    sys.stdout.write(f"{last}\n")
