"""The trainer under a real server, with the engine ``torch`` in a process of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ajet_testing.real_trainer import kill_in_a_step, servers_with
from ajet_testing.servers import ServerFactory


@pytest.fixture
def servers(tmp_path: Path) -> ServerFactory:
    return servers_with("trl", tmp_path)


@pytest.mark.timeout(300)
async def test_a_trainer_that_is_killed_in_a_step_is_replaced_and_goes_on_at_its_checkpoint(
    servers: ServerFactory,
) -> None:
    await kill_in_a_step(servers, "trl")


@pytest.mark.timeout(300)
async def test_a_student_learns_from_a_teacher_in_a_model_root_and_goes_on_at_its_checkpoint(
    servers: ServerFactory, tmp_path: Path
) -> None:
    """The worker reads the teacher from a path beside the run directory."""
    student = tmp_path / "models" / "tiny"
    teacher = tmp_path / "models" / "teacher"
    shutil.copytree(student, teacher)
    torch.manual_seed(1)
    module = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(student))
    module.save_pretrained(teacher)
    await kill_in_a_step(servers, "trl_distillation", teacher="../models/teacher")
