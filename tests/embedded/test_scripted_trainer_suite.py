from pathlib import Path

from ajet_core.interfaces import Trainer, WorkerContext
from ajet_core.protocol import AlgorithmConfig, ModelConfig
from ajet_testing.scripted_trainer import ScriptedTrainer, ScriptedTrainerSettings
from ajet_testing.suites.trainer_suite import TrainerSuite


class TestScriptedTrainer(TrainerSuite):
    rehearses = True

    def make_trainer(self, run_dir: Path) -> Trainer:
        trainer = ScriptedTrainer(ScriptedTrainerSettings(), WorkerContext(run_dir))
        trainer.start(ModelConfig(path="model"), AlgorithmConfig())
        return trainer
