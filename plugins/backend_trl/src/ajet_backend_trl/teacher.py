"""The teacher of a distillation, a model that is not trained."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import nn

from ajet_backend_trl.settings import TrlDistillationSettings
from ajet_core.errors import ConfigError, ModelDirectoryError
from ajet_core.protocol import ModelConfig
from ajet_torch.models import load_model, vocabulary_size

PARAM = "trainer.settings.teacher"
TOKENIZER_FILE = "tokenizer.json"


def load_teacher(
    options: TrlDistillationSettings, model: ModelConfig, student: nn.Module, device: torch.device
) -> nn.Module:
    """Load the teacher in evaluation mode, without gradients.

    :param model: configuration of the student.
    :param student: the student's model.
    :raises ModelDirectoryError: the directory cannot be used.
    :raises ConfigError: its vocabulary differs from the student's.
    """
    directory = Path(options.teacher)
    check_same_tokens(Path(model.path), directory)
    try:
        teacher = load_model(ModelConfig(path=options.teacher, dtype=options.teacher_dtype), device)
    except ModelDirectoryError as error:
        raise ModelDirectoryError(f"the teacher: {error.message}", param=PARAM) from error
    theirs, ours = vocabulary_size(teacher), vocabulary_size(student)
    if theirs != ours:
        raise ConfigError(
            f"the teacher {directory} has logits for {theirs} tokens, but the trained model "
            f"for {ours}: they are compared token by token, so the teacher must be of the "
            "same family and vocabulary. Models of one family may be padded to different "
            "sizes",
            param=PARAM,
        )
    return teacher.requires_grad_(False)


def check_same_tokens(student: Path, teacher: Path) -> None:
    """Refuse a teacher with other tokens, if both directories have a tokenizer file.

    :raises ConfigError: the tokens differ; the message names the first one.
    """
    files = [directory / TOKENIZER_FILE for directory in (student, teacher)]
    if not all(file.is_file() for file in files):
        return
    ours, theirs = (_tokens(file) for file in files)
    different = sorted(
        number for number in ours.keys() | theirs.keys() if ours.get(number) != theirs.get(number)
    )
    if different:
        first = different[0]
        raise ConfigError(
            f"the teacher {teacher} has another vocabulary than {student}: {len(different)} "
            f"tokens differ; the first is {first}, which is {_shown(theirs.get(first))} "
            f"there and {_shown(ours.get(first))} here. Logits are compared token by token, "
            "so the teacher must have the same tokenizer",
            param=PARAM,
        )


def _tokens(file: Path) -> dict[int, str]:
    try:
        vocabulary = Tokenizer.from_file(str(file)).get_vocab(with_added_tokens=True)
    # The package raises plain Exception for all errors, from bad JSON to unknown model types.
    except Exception as error:
        raise ModelDirectoryError(
            f"{file} is not a valid tokenizer: {error}", param=PARAM
        ) from error
    return {number: token for token, number in vocabulary.items()}


def _shown(token: str | None) -> str:
    return "no token" if token is None else repr(token[:40])
