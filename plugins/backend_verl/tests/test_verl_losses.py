"""What verl computes of a batch: against the trainer ``torch``, by hand, and by what it teaches."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from ajet_backend_torch.settings import TorchTrainerSettings
from ajet_backend_torch.trainer import TorchTrainer
from ajet_backend_verl.settings import ESTIMATORS, VerlTrainerSettings
from ajet_backend_verl.verl_keys import ACTOR, CORRECTION
from batches import LORA, aim, batch, full_logprobs, load, module_of, scorer, weights
from tiny_models import VOCAB

from ajet_core.interfaces import WorkerContext
from ajet_core.protocol import AlgorithmConfig, ModelConfig
from ajet_core.timeline import group_advantages
from ajet_testing.losses.batches import favouring_batch
from ajet_torch.update_limit import MAX_UPDATE_KL

pytestmark = pytest.mark.timeout(300)
FAVOURED = 10
DRO = {ACTOR + "policy_loss.dro_beta": 0.1}
LOSSES = [
    ("vanilla", {}),
    ("dppo_tv", {}),
    ("dppo_kl", {}),
    ("gspo", {}),
    ("sapo", {}),
    ("gpg", {}),
    ("clip_cov", {}),
    ("kl_cov", {}),
    ("geo_mean", {}),
    ("dro", DRO),
    ("cispo", {}),
]


BASE = AlgorithmConfig(
    learning_rate=1e-3,
    clip_low=0.1,
    clip_high=0.3,
    kl_coef=0.1,
    adam_betas=(0.8, 0.95),
    max_grad_norm=0.5,
)


def moved(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> torch.Tensor:
    """All that changed, as one vector."""
    return torch.cat([(after[name] - before[name]).flatten() for name in sorted(before)])


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(a.double(), b.double(), dim=0))


@pytest.fixture
def trainer(started, models, tmp_path):
    """With a reference model and any loss; `aim` gives it another."""
    return started.get(0, tmp_path / "verl", models(), BASE)


def aimed(trainer, algorithm: dict[str, object] | None = None, **settings: object):
    return aim(trainer, BASE.model_copy(update={"kl_coef": 0.0, **(algorithm or {})}), **settings)


def step_of_torch(path: str, run_dir: Path, algorithm: AlgorithmConfig, b):
    """Report and update of the trainer ``torch``."""
    settings = TorchTrainerSettings(device="cpu", measure_costs=False)
    other = TorchTrainer(settings, WorkerContext(run_dir, 3))
    other.start(ModelConfig(path=path), algorithm)
    before = {n: t.clone() for n, t in other.policy.optimiser.weight_tensors().items()}
    report = other.step(b)
    return report, moved(before, other.policy.optimiser.weight_tensors())


@pytest.mark.parametrize(
    ("changes", "rows"),
    [
        ({"token_budget": 60}, 2),
        ({"aggregation": "call_mean", "kl_coef": 0.3}, 2),
        ({"aggregation": "episode_mean", "minibatches": 2, "token_budget": 50}, 2),
        ({"aggregation": "episode_sum", "entropy_coef": 0.02}, 1),
        # A small step: verl cuts the divergence of a token off at 10.
        (
            {
                "kl_coef": 0.3,
                "entropy_coef": 0.02,
                "minibatches": 2,
                "epochs": 2,
                "learning_rate": 1e-4,
            },
            1,
        ),
        ({"importance": "truncated", "importance_cap": 1.2, "minibatches": 2}, 1),
        # Large steps, which are shortened.
        ({"learning_rate": 0.02, "minibatches": 2}, 1),
    ],
)
def test_a_step_is_that_of_the_trainer_torch(changes, rows, trainer, models, tmp_path):
    """Loss, gradient norm, logprobs and new weights, for each division of the batch."""
    algorithm = BASE.model_copy(update={"kl_coef": 0.0, **changes})
    b = batch(
        load(models()),
        rewards=(1.0, 0.0, 0.5, 0.5, 0.2, 0.9),
        groups="aabbcc",
        noise=0.3,
        temperatures=(0.7, 1.3) if rows == 2 else (1.0, 1.0),
        rows=rows,
    )
    aim(trainer, algorithm)
    before = weights(trainer)
    ours = trainer.step(b)
    our_way = moved(before, weights(trainer))
    theirs, their_way = step_of_torch(models(), tmp_path / "torch", algorithm, b)
    for name in (
        "loss",
        "grad_norm",
        "ratio_mean",
        "clip_fraction",
        "learning_rate",
        "logprob_gap",
    ):
        assert ours.metrics[name] == pytest.approx(theirs.metrics[name], rel=2e-3, abs=1e-6), name
    assert ours.metrics["updates_shortened"] == theirs.metrics["updates_shortened"]
    if changes.get("learning_rate") == 0.02:
        assert ours.metrics["updates_shortened"] >= 1
    for name in ("kl", "importance_mean", "importance_max", "importance_capped", "update_kl"):
        assert (name in ours.metrics) == (name in theirs.metrics)
        if name in ours.metrics:
            assert ours.metrics[name] == pytest.approx(theirs.metrics[name], rel=2e-3, abs=1e-6)
    assert ours.tokens_trained == theirs.tokens_trained
    assert cosine(our_way, their_way) > 0.999
    assert float(our_way.norm()) == pytest.approx(float(their_way.norm()), rel=1e-2)
    for mine, other in zip(ours.logprobs, theirs.logprobs, strict=True):
        assert mine == pytest.approx(other, abs=1e-4)


def test_updates_that_are_too_large_are_shortened(trainer, models):
    b = batch(load(models()), noise=0.1)
    far = {"learning_rate": 0.05, "minibatches": 2}
    limited = aimed(trainer, far).step(b).metrics
    assert limited["updates_shortened"] == 2
    assert 0 < limited["update_kl"] <= MAX_UPDATE_KL
    assert "update_kl" not in aimed(trainer, {**far, "max_update_kl": 0.0}).step(b).metrics
    assert "update_kl" not in aimed(trainer, far).rehearse(b).metrics


@pytest.mark.parametrize(("loss_mode", "keys"), LOSSES, ids=[name for name, _ in LOSSES])
def test_every_loss_makes_a_favoured_token_more_likely(loss_mode, keys, trainer, models, tmp_path):
    # Large updates, all of which count.
    large = {"learning_rate": 3e-3, "epochs": 2, "max_update_kl": 0}
    aimed(trainer, large, loss_mode=loss_mode, verl=keys)
    probe = [8, 9, 11, FAVOURED]

    def favour() -> float:
        return float(full_logprobs(module_of(trainer, models()), probe, 1.0)[-1, FAVOURED])

    before = favour()
    for step in range(1, 7):
        score = scorer(module_of(trainer, models()))
        trainer.step(favouring_batch(VOCAB, FAVOURED, step, score))
    assert favour() > before + 1


@pytest.mark.parametrize("mode", ["token-mean", "token-sum", "seq-mean-token-mean", "geo_mean"])
def test_a_mode_of_verl_weighs_rows_as_verl_does_however_they_are_cut_up(
    mode, trainer, models, tmp_path
):
    """Rows without advantage are left out; uneven micro-batches give the loss of one."""
    module = load(models())
    b = batch(module, rewards=(1.0, 0.0, 0.5, 0.5, 0.3), groups="aabba", noise=0.4)
    score = scorer(module)
    per_row = []
    for number, tree in enumerate(b.trees):
        (segment,) = tree.segments
        now = score(segment.token_ids, 1.0)
        advantage, ratios = b.calls[2 * number].advantage, []
        for span in segment.spans:
            behaviour = b.calls[span.call].logprobs
            ratios += [now[span.offset - 1 + i] - behaviour[i] for i in range(span.length)]
        per_row.append((advantage, ratios))
    values = [[clipped(math.exp(r), a) for r in ratios] for a, ratios in per_row]
    tokens = sum(len(row) for row in values)
    geometric = [
        -a * math.exp(math.fsum(bounded(r, a) for r in ratios) / len(ratios))
        for a, ratios in per_row
    ]
    wanted = {
        "token-mean": math.fsum(map(math.fsum, values)) / tokens,
        "token-sum": math.fsum(map(math.fsum, values)),
        "seq-mean-token-mean": math.fsum(math.fsum(v) / len(v) for v in values) / len(values),
        "geo_mean": math.fsum(geometric) / len(geometric),
    }[mode]
    settings = {"loss_mode": mode} if mode == "geo_mean" else {"loss_agg_mode": mode}
    for budget in (None, 60):
        trainer.load(trainer_begun(trainer, tmp_path))
        aimed(trainer, {"token_budget": budget}, **settings)
        assert trainer.step(b).metrics["loss"] == pytest.approx(wanted, rel=1e-4)


def trainer_begun(trainer, tmp_path) -> Path:
    """A checkpoint of what it is at first."""
    if not (tmp_path / "begun").exists():
        trainer.save(tmp_path / "begun")
    return tmp_path / "begun"


def clipped(ratio: float, advantage: float) -> float:
    """The surrogate of a token; ratios are too small here for the dual clip."""
    bound = min(max(ratio, 0.9), 1.3)
    return max(-ratio * advantage, -bound * advantage)


def bounded(log_ratio: float, advantage: float) -> float:
    """As GMPO clips (arXiv:2507.20673): the log-ratio, on the side that the advantage favours."""
    bound = min(max(log_ratio, -0.1), 0.3)
    return min(log_ratio, bound) if advantage > 0 else max(log_ratio, bound)


def test_adapters_are_held_to_the_model_without_them(started, models, tmp_path):
    algorithm = BASE.model_copy(update={"kl_coef": 0.3, "learning_rate": 1e-2})
    trainer = started.get(0, tmp_path / "run", models(), algorithm, LORA)
    b = batch(load(models()), noise=0.3)
    first, second = trainer.step(b), trainer.step(b)
    # Adapters start as nothing.
    assert first.metrics["kl"] == pytest.approx(0, abs=1e-6)
    assert second.metrics["kl"] > 1e-4


@pytest.mark.parametrize("name", ["grpo", "rloo", "grpo_vectorized", "rloo_vectorized"])
def test_an_estimator_of_verl_gives_the_advantages_that_its_formula_says(
    name, trainer, models, tmp_path
):
    """Each episode counts once in its group's baseline, whatever number of sequences it has."""
    rewards, groups = (1.0, 0.0, 0.5, 0.5, 0.2, 0.9), "aaabbb"
    b = batch(load(models()), rewards=rewards, groups=groups, rows=2)
    method = "leave_one_out" if name.startswith("rloo") else "group_std"
    wanted = group_advantages(rewards, groups, method)
    found = advantages_of(b, name)
    for row, advantages in found:
        for value, trained in zip(advantages, row.mask, strict=True):
            assert value == pytest.approx(wanted[row.episode] if trained else 0.0, rel=1e-3)


def advantages_of(b, name: str, **keys: object):
    from ajet_backend_verl.advantages import estimated
    from ajet_backend_verl.configs import estimator_config
    from ajet_backend_verl.plan import rows_to_train

    options = VerlTrainerSettings(adv_estimator=name, verl=keys)
    rows = estimated(b, rows_to_train(b), estimator_config(options))
    return [(row, row.advantages) for row in rows]


def test_passk_pays_the_best_episode_of_a_group_alone(cluster):
    b = batch(rewards=(1.0, 0.25, 0.5), groups="aaa", rows=2)
    found = advantages_of(b, "grpo_passk", **{"algorithm.norm_adv_by_std_in_grpo": False})
    for row, advantages in found:
        wanted = 0.5 if row.episode == 0 else 0.0
        assert [a for a, inside in zip(advantages, row.mask, strict=True) if inside] == [
            wanted
        ] * row.sampled


def test_rewards_of_calls_are_discounted_over_the_tokens_after_them(cluster):
    """REINFORCE++ without a baseline: returns, whitened over all tokens."""
    from dataclasses import replace

    b = batch(rewards=(1.0, 0.0), groups="ab")
    first = replace(b.episodes[1], call_rewards={b.calls[2].call_id: 2.0})
    b = replace(b, episodes=[b.episodes[0], first])
    gamma = 0.5
    returns = []
    for call, reward in zip(b.calls, (0.0, 1.0, 2.0, 0.0), strict=True):
        size = len(call.logprobs)
        returns.append([reward * gamma ** (size - 1 - i) for i in range(size)])
    returns[0] = [1.0 * gamma ** (4 - 1 - i + 3) for i in range(4)]
    values = torch.tensor([v for call in returns for v in call])
    white = (values - values.mean()) * torch.rsqrt(values.var() + 1e-8)
    found = advantages_of(b, "reinforce_plus_plus", **{"algorithm.gamma": gamma})
    got = [a for row, adv in found for a, m in zip(adv, row.mask, strict=True) if m]
    assert got == pytest.approx(white.tolist(), rel=1e-3, abs=1e-4)


def test_an_agent_with_a_reward_of_its_own_is_compared_with_the_same_agent(cluster):
    from dataclasses import replace

    b = batch(rewards=(1.0, 0.0), groups="aa")
    calls = [replace(c, agent="critic" if i % 2 else "") for i, c in enumerate(b.calls)]
    episodes = [
        replace(e, agent_rewards={"critic": r}) for e, r in zip(b.episodes, (0.2, 0.8), strict=True)
    ]
    found = advantages_of(replace(b, calls=calls, episodes=episodes), "rloo")
    for row, advantages in found:
        by_call = {s.call: advantages[s.offset] for s in row.spans}
        sign = 1 if row.episode == 0 else -1
        assert [by_call[call] for call in sorted(by_call)] == pytest.approx([sign, -0.6 * sign])


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_every_estimator_trains(name, trainer, models, tmp_path):
    aimed(trainer, adv_estimator=name)
    before = weights(trainer)
    report = trainer.step(batch(load(models()), groups="aabb"))
    assert report.metrics["no_signal"] == 0
    assert float(moved(before, weights(trainer)).norm()) > 0


def test_sequences_that_another_policy_would_not_have_sampled_are_rejected(trainer, models):
    keys = {
        CORRECTION + "rollout_is": None,
        CORRECTION + "rollout_rs": "seq_mean_k1",
        CORRECTION + "rollout_rs_threshold": "0.5_2.0",
    }
    aimed(trainer, verl=keys)
    from dataclasses import replace

    b = batch(load(models()))
    # The last episode was sampled by a policy under which its tokens were much less likely.
    calls = [
        replace(c, logprobs=[value - 2 for value in c.logprobs]) if c.episode == 3 else c
        for c in b.calls
    ]
    b = replace(b, calls=calls)
    report = trainer.step(b)
    assert report.tokens_trained == sum(len(c.logprobs) for c in calls if c.episode != 3)
    assert report.metrics["rollout_corr/rollout_rs_masked_fraction"] == pytest.approx(0.25)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_importance_weights_of_verl_scale_the_loss(level, trainer, models, tmp_path):
    """All tokens were half as likely when sampled: tokens weigh 2, sequences are clipped."""
    from dataclasses import replace

    b = batch(load(models()))
    calls = [replace(c, logprobs=[v - math.log(2) for v in c.logprobs]) for c in b.calls]
    begun = trainer_begun(trainer, tmp_path)
    losses = []
    for keys in (
        {CORRECTION + "rollout_is": None},
        {CORRECTION + "rollout_is": level, CORRECTION + "rollout_is_threshold": 3.0},
    ):
        trainer.load(begun)
        aimed(trainer, verl=keys)
        losses.append(trainer.step(replace(b, calls=calls)).metrics["grad_norm"])
    assert losses[1] / losses[0] == pytest.approx(2.0 if level == "token" else 3.0, rel=1e-3)


@pytest.mark.parametrize("loss_type", ["ppo_clip", "reinforce"])
def test_bypass_mode_compares_with_what_sampled(loss_type, trainer, models):
    keys = {
        CORRECTION + "bypass_mode": True,
        CORRECTION + "loss_type": loss_type,
        CORRECTION + "rollout_is": "token",
    }
    aimed(trainer, verl=keys)
    b = batch(load(models()), noise=0.2)
    report = trainer.step(b)
    # No pass of its own for old logprobs.
    computed = sum(t.tokens for t in b.trees)
    assert report.tokens_processed == computed
    assert report.metrics["grad_norm"] > 0
