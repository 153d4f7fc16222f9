"""Writing a model as a Hugging Face directory."""

from __future__ import annotations

import shutil
from pathlib import Path

from torch import nn

from ajet_core.errors import TrainerError
from ajet_core.protocol.run import ModelConfig
from ajet_torch.directories import whole_directory
from ajet_torch.models import without_progress_bar

__all__ = ["COPIED", "KEPT_VERSIONS", "publish_directory", "without_adapters", "write_model"]

COPIED = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "chat_template*",
    "generation_config.json",
)
KEPT_VERSIONS = 2


def publish_directory(
    module: nn.Module, model: ModelConfig, run_dir: Path, policy_version: int
) -> Path:
    """Write the model to ``<run_dir>/weights``, where the last two versions are kept.

    :return: the directory, the location of the weight channel ``safetensors_dir``.
    :raises TrainerError: it cannot be written.
    """
    target = run_dir / "weights" / f"v{policy_version:09d}"
    write_model(module, model, target)
    _drop_old_versions(target)
    return target


def without_adapters(module: nn.Module, model: ModelConfig) -> nn.Module:
    """Return the module itself, or if it has LoRA layers another one with merged weights."""
    if model.lora is None:
        return module
    # Imported here because importing peft is slow.
    from ajet_torch.lora import merged

    return merged(module)


def write_model(module: nn.Module, model: ModelConfig, target: Path) -> None:
    """Write configuration, weights and tokenizer files of a model, atomically.

    :param module: a Hugging Face causal LM, created according to `model`; LoRA layers are merged in
        the written files, and `module` is unchanged.
    :raises TrainerError: the directory cannot be written.
    """
    try:
        plain = without_adapters(module, model)
        with whole_directory(target) as aside:
            with without_progress_bar():
                plain.save_pretrained(aside)  # type: ignore[operator]
            for pattern in COPIED:
                for file in Path(model.path).glob(pattern):
                    if file.is_file():
                        shutil.copyfile(file, aside / file.name)
    except (OSError, RuntimeError) as error:
        raise TrainerError(f"cannot write model directory {target}: {error}") from error


def _drop_old_versions(newest: Path) -> None:
    """Keep `newest` and the version before; later ones belong to a run that was set back."""
    versions = sorted(path for path in newest.parent.glob("v*") if path.is_dir())
    before = [path for path in versions if path < newest]
    for path in versions:
        if path != newest and path not in before[1 - KEPT_VERSIONS :]:
            shutil.rmtree(path, ignore_errors=True)
