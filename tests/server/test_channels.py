"""Which weight channel trainer and engine use."""

from __future__ import annotations

import pytest

from ajet_core.errors import ChannelError
from ajet_core.interfaces import EngineCapabilities, TrainerCapabilities
from ajet_core.plugin import EngineSpec, TrainerSpec
from ajet_server.run.channels import choose_channel


def pair(offered: tuple[str, ...], accepted: tuple[str, ...]) -> tuple[TrainerSpec, EngineSpec]:
    trainer = TrainerSpec(
        name="tr",
        target="a:B",
        capabilities=TrainerCapabilities(weight_channels=offered, algorithm_fields=frozenset()),
    )
    engine = EngineSpec(
        name="en", target="a:B", capabilities=EngineCapabilities(weight_channels=accepted)
    )
    return trainer, engine


def test_the_trainers_first_accepted_channel_is_chosen() -> None:
    offered, accepted = ("nccl", "memory", "files"), ("files", "memory")
    assert choose_channel(*pair(offered, accepted), None, together=True) == "memory"


def test_shared_tensors_need_one_process() -> None:
    both = ("in_process", "files")
    assert choose_channel(*pair(both, both), None, together=True) == "in_process"
    assert choose_channel(*pair(both, both), None, together=False) == "files"
    with pytest.raises(ChannelError, match=r"cannot use .* 'in_process' here: .* offers files,"):
        choose_channel(*pair(both, both), "in_process", together=False)


def test_no_common_channel_names_both_sets() -> None:
    with pytest.raises(ChannelError, match=r"offers nccl, the engine accepts files, memory"):
        choose_channel(*pair(("nccl",), ("files", "memory")), None, together=True)


def test_differences_need_directories_and_are_only_used_if_wanted() -> None:
    directories = pair(("collective", "safetensors_dir"), ("safetensors_dir",))
    assert choose_channel(*directories, None, together=False) == "safetensors_dir"
    assert choose_channel(*directories, "delta", together=False) == "delta"
    with pytest.raises(ChannelError, match=r"offers collective, .* accepts safetensors_dir, delta"):
        choose_channel(*pair(("collective",), ("safetensors_dir",)), "delta", together=False)
