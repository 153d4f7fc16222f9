"""Trainers and batches to test them with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from ajet_backend_verl.settings import WEIGHS_ITSELF, VerlTrainerSettings, check_algorithm
from ajet_backend_verl.trainer import VerlTrainer
from tiny_models import VOCAB

from ajet_core.errors import TrainerError
from ajet_core.interfaces import WorkerContext
from ajet_core.protocol import AlgorithmConfig, LoraConfig, ModelConfig
from ajet_core.timeline import TrainBatch
from ajet_testing.losses.batches import Scorer, linear_batch
from ajet_torch.models import load_model

LORA = LoraConfig(rank=4, alpha=8)


def make(
    path: str,
    run_dir: Path,
    algorithm: AlgorithmConfig | None = None,
    lora: LoraConfig | None = None,
    dtype: str = "auto",
    seed: int = 3,
    **settings: object,
) -> VerlTrainer:
    """A started trainer."""
    trainer = VerlTrainer(
        VerlTrainerSettings(**{"device": "cpu", "start_seconds": 60, **settings}),
        WorkerContext(run_dir, seed),
    )
    trainer.start(ModelConfig(path=path, lora=lora, dtype=dtype), algorithm or AlgorithmConfig())
    return trainer


class Started:
    """Trainers that are started once and then reset: a worker on Ray takes long to start.

    :param begun: directory for what they were at the start.
    """

    def __init__(self, begun: Path) -> None:
        self._begun = begun
        self._made: dict[str, list[VerlTrainer]] = {}

    def get(self, place: int, run_dir: Path, *arguments: object, **settings: object) -> VerlTrainer:
        """As `make`, for arguments that are the same for the same trainer.

        :param place: trainers that are used at the same time have different ones, counted from 0.
        """
        key = repr((arguments, sorted(settings.items())))
        made = self._made.setdefault(key, [])
        begun = self._begun / f"{len(self._made)}-{abs(hash(key))}"
        if place == len(made):
            trainer = make(arguments[0], run_dir, *arguments[1:], **settings)
            trainer.save(begun)
            made.append(trainer)
        elif _is_closed(made[place]):
            made[place] = make(arguments[0], run_dir, *arguments[1:], **settings)
        trainer = made[place]
        trainer.load(next(self._begun.glob(f"*-{abs(hash(key))}")))
        trainer.context = replace(trainer.context, run_dir=run_dir)
        trainer.policy.token_budget = trainer.policy.first_token_budget
        return trainer

    def close(self) -> None:
        """End them all."""
        for made in self._made.values():
            for trainer in made:
                trainer.close()


def _is_closed(trainer: VerlTrainer) -> bool:
    try:
        return trainer.policy is None
    except TrainerError:
        return True


def weights(trainer: VerlTrainer) -> dict[str, torch.Tensor]:
    """Trained weights, as copies."""
    return dict(trainer.policy.weight_tensors())


def state(trainer: VerlTrainer) -> dict[str, torch.Tensor]:
    """Weights and optimiser, as copies."""
    return {**weights(trainer), **trainer.policy.state_tensors()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def load(path: str) -> torch.nn.Module:
    """The model of a directory, in float32."""
    return load_model(ModelConfig(path=path, dtype="float32"), torch.device("cpu"))


def module_of(trainer: VerlTrainer, path: str) -> torch.nn.Module:
    """The model as it is trained, all parameters; `path` is where it came from."""
    module = load(path)
    module.load_state_dict(weights(trainer), strict=False)
    return module


def full_logprobs(module: torch.nn.Module, ids: list[int], temperature: float) -> torch.Tensor:
    """[T - 1, vocabulary] logprobs of every next token, from one plain forward pass."""
    with torch.no_grad():
        logits = module(torch.tensor([ids]), use_cache=False).logits[0, :-1].float()
    return torch.log_softmax(logits / temperature, -1)


def scorer(module: torch.nn.Module) -> Scorer:
    """The model's own logprobs."""

    def score(ids: list[int], temperature: float) -> list[float]:
        found = full_logprobs(module, ids, temperature)
        return found.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()

    return score


def batch(module: torch.nn.Module | None = None, **choices: object) -> TrainBatch:
    """As `linear_batch`; behaviour logprobs are `module`'s own plus noise."""
    make_batch: Callable[..., TrainBatch] = linear_batch
    return make_batch(VOCAB, None if module is None else scorer(module), **choices)


def aim(trainer: VerlTrainer, algorithm: AlgorithmConfig, **settings: object) -> VerlTrainer:
    """The same trainer with another loss; it keeps its optimiser and its reference model."""
    from ajet_backend_verl.configs import actor_config

    options = VerlTrainerSettings(device="cpu", **settings)
    check_algorithm(options, algorithm)
    trainer.settings, trainer._algorithm = options, algorithm
    trainer.policy.workers.aim(
        actor_config(algorithm, options), weighs_itself=options.loss_mode in WEIGHS_ITSELF
    )
    trainer.policy.token_budget = algorithm.token_budget or trainer.policy.first_token_budget
    return trainer
