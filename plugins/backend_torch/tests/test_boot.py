"""What a worker need not do again, or at all, before it can train."""

from __future__ import annotations

import subprocess
import sys


def test_peft_is_imported_by_runs_with_adapters_only(model_dir, tmp_path):
    code = (
        "import sys; from pathlib import Path\n"
        "from ajet_backend_torch.settings import TorchTrainerSettings\n"
        "from ajet_backend_torch.trainer import TorchTrainer\n"
        "from ajet_core.interfaces import WorkerContext\n"
        "from ajet_core.protocol.run import AlgorithmConfig, LoraConfig, ModelConfig\n"
        "def start(lora):\n"
        "    settings = TorchTrainerSettings(device='cpu', measure_costs=False)\n"
        f"    trainer = TorchTrainer(settings, WorkerContext(Path({str(tmp_path)!r})))\n"
        f"    trainer.start(ModelConfig(path={model_dir!r}, lora=lora), AlgorithmConfig())\n"
        "    trainer.publish('safetensors_dir', 1)\n"
        "start(None)\n"
        "assert 'peft' not in sys.modules\n"
        "start(LoraConfig(rank=2))\n"
        "assert 'peft' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
