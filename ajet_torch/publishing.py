"""Publishing of a model in this process, for all trainers that can gather their weights in one."""

from __future__ import annotations

import time
from dataclasses import replace

from torch import nn

from ajet_core.errors import TrainerError
from ajet_core.interfaces import WeightUpdate, WorkerContext
from ajet_core.protocol.run import ModelConfig
from ajet_engines.collective import CHANNEL as COLLECTIVE
from ajet_engines.collective import WeightSender, file_tensors
from ajet_engines.in_server.ajet_checksums import published
from ajet_torch.export import publish_directory, without_adapters

__all__ = ["Publisher"]


class Publisher:
    """Publishes weights on ``safetensors_dir`` and ``collective``.

    :param name: name of the trainer.
    :param channels: all channels of the trainer, for the error about others.
    """

    def __init__(self, name: str, channels: tuple[str, ...], context: WorkerContext) -> None:
        self._name = name
        self._channels = channels
        self._run_dir = context.run_dir
        self._sender = WeightSender(context.collective_host)

    def publish(
        self, module: nn.Module, model: ModelConfig, channel: str, policy_version: int
    ) -> WeightUpdate:
        """Publish a Hugging Face causal LM, with merged adapters and a checksum of each tensor.

        ``safetensors_dir`` writes a directory below ``<run_dir>/weights`` and keeps the last two;
        ``collective`` broadcasts a copy to each receiver that requests it, until the next version.

        :raises TrainerError: there is no such channel, the directory cannot be written, or nothing
            can be sent.
        """
        self.check(channel)
        plain = without_adapters(module, model)
        began = time.perf_counter()
        checksums = published(file_tensors(plain))
        seconds = time.perf_counter() - began
        if channel == COLLECTIVE:
            update = self._sender.publish(plain, policy_version)
        else:
            bare = model.model_copy(update={"lora": None})
            location = publish_directory(plain, bare, self._run_dir, policy_version)
            update = WeightUpdate(channel, policy_version, str(location))
        return replace(update, checksums=checksums, seal_seconds=seconds)

    def check(self, channel: str) -> None:
        """:raises TrainerError: there is no such channel."""
        if channel not in self._channels:
            raise TrainerError(
                f"the trainer {self._name!r} has no weight channel {channel!r}, only "
                f"{', '.join(self._channels)}"
            )

    def close(self) -> None:
        """Stop sending; does nothing if nothing was sent."""
        self._sender.close()
