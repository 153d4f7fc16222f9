"""What a run may set, checked before anything starts: neither torch nor verl is imported for it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from ajet_backend_verl.settings import (
    ESTIMATORS,
    OTHER_ESTIMATORS,
    VerlTrainerSettings,
    check_algorithm,
)
from ajet_backend_verl.verl_keys import ACTOR, CORRECTION, ELSEWHERE, FSDP, PASSED_ON, REFUSED

from ajet_core.errors import ConfigError
from ajet_core.protocol import AlgorithmConfig


def test_the_server_reads_them_without_torch_ray_or_verl() -> None:
    code = (
        "import sys, ajet_backend_verl.hooks, ajet_backend_verl.settings\n"
        "print(sorted({'torch', 'ray', 'verl', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (ACTOR + "clip_ratio_low", "is set by algorithm.clip_low"),
        (ACTOR + "policy_loss.loss_mode", "is set by trainer.settings.loss_mode"),
        (ACTOR + "ppo_epochs", "is set by algorithm.epochs"),
        ("algorithm.adv_estimator", "is set by trainer.settings.adv_estimator"),
        ("actor_rollout_ref.model.external_lib", "a run cannot import modules"),
        (ACTOR + "optim.optimizer_impl", "a run cannot import modules"),
        ("actor_rollout_ref.model.trust_remote_code", "no code"),
        ("algorithm.use_kl_in_reward", "algorithm.kl_coef"),
        ("actor_rollout_ref.rollout.temperature", "the engine does the rollouts"),
        ("critic.optim.lr", "there is no critic"),
        (ACTOR + "clip_ratio_d", f"did you mean {ACTOR}clip_ratio_c"),
        ("trainer.logger", "the allowed keys are"),
    ],
)
def test_a_key_that_cannot_be_set_is_refused_by_name(key: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        VerlTrainerSettings(verl={key: 1})
    assert key in str(refused.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (ACTOR + "clip_ratio_c", 1.0),
        (ACTOR + "clip_ratio_c", "three"),
        (ACTOR + "kl_loss_type", "k9"),
        (FSDP + "reshard_after_forward", "perhaps"),
        (CORRECTION + "rollout_is", "word"),
        (CORRECTION + "rollout_rs", "seq_max_k1"),
        (CORRECTION + "rollout_is_threshold", "high"),
    ],
)
def test_a_value_that_verl_does_not_take_is_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(ValueError, match="cannot be") as refused:
        VerlTrainerSettings(verl={key: value})
    assert key in str(refused.value)


def test_a_key_is_set_in_one_place() -> None:
    assert not PASSED_ON.keys() & ELSEWHERE.keys()
    assert not PASSED_ON.keys() & REFUSED.keys()
    assert not ELSEWHERE.keys() & REFUSED.keys()


@pytest.mark.parametrize("name", sorted(OTHER_ESTIMATORS))
def test_an_estimator_that_cannot_be_had_is_refused_with_the_reason(name: str) -> None:
    assert name not in ESTIMATORS
    with pytest.raises(ValueError, match="it needs"):
        VerlTrainerSettings(adv_estimator=name)


def test_an_unknown_estimator_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match="reinforce_plus_plus_baseline"):
        VerlTrainerSettings(adv_estimator="grppo")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"verl": {"algorithm.gamma": 0.9}}, "set adv_estimator"),
        ({"verl": {ACTOR + "loss_scale_factor": 100}}, "seq-mean-token-sum-norm"),
        ({"loss_mode": "dro"}, "dro_beta"),
        ({"loss_mode": "geo_mean", "loss_agg_mode": "token-mean"}, "weights tokens by itself"),
        ({"loss_mode": "sapo", "loss_agg_mode": "token-mean"}, "weights tokens by itself"),
        ({"verl": {CORRECTION + "rollout_rs": "token_k1"}}, "rollout_rs_threshold"),
        ({"loss_mode": "gspo", "verl": {CORRECTION + "bypass_mode": True}}, "loss of its own"),
        ({"verl": {CORRECTION + "loss_type": "reinforce"}}, "bypass_mode"),
    ],
)
def test_what_does_not_fit_together_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VerlTrainerSettings(**settings)


@pytest.mark.parametrize(
    ("settings", "algorithm", "param"),
    [
        ({"adv_estimator": "rloo"}, {"advantage": "group_mean"}, "algorithm.advantage"),
        ({"adv_estimator": "rloo"}, {"discount": 0.9}, "algorithm.discount"),
        (
            {"adv_estimator": "rloo"},
            {"call_credit": "process_supervision"},
            "algorithm.call_credit",
        ),
        ({"loss_agg_mode": "token-sum"}, {"aggregation": "call_mean"}, "algorithm.aggregation"),
        ({"loss_mode": "kl_cov"}, {"aggregation": "episode_mean"}, "algorithm.aggregation"),
        ({"loss_mode": "sapo"}, {"aggregation": "call_mean"}, "algorithm.aggregation"),
        (
            {"verl": {CORRECTION + "rollout_is": "sequence"}},
            {"importance": "truncated"},
            "algorithm.importance",
        ),
    ],
)
def test_what_both_say_is_refused(
    settings: dict[str, object], algorithm: dict[str, object], param: str
) -> None:
    options = VerlTrainerSettings(**settings)
    with pytest.raises(ConfigError) as refused:
        check_algorithm(options, AlgorithmConfig(**algorithm))
    assert refused.value.param == param
