"""On-policy distillation."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from ajet_backend_trl.distillation import logit_scale
from ajet_backend_trl.hooks import WEIGHT_CHANNELS, ajet_register_trainers
from batches import LORA, batch, full_logprobs, load, make_distillation, weights
from tiny_models import VOCAB
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, GraniteConfig, Qwen2Config

from ajet_core.errors import ConfigError, ModelDirectoryError, TrainerError
from ajet_core.interfaces import Trainer
from ajet_core.protocol import AlgorithmConfig, LoraConfig
from ajet_core.timeline import (
    TrainBatch,
    TrainCall,
    TrainEpisode,
    TrainSegment,
    TrainSpan,
    TrainTree,
)
from ajet_testing.suites.trainer_suite import TrainerSuite


class TestTrlDistillationTrainer(TrainerSuite):
    vocab_size = VOCAB
    weight_channels = WEIGHT_CHANNELS
    rehearses = True

    @pytest.fixture(autouse=True, params=[None, LoraConfig(rank=4, dropout=0.1)])
    def kind(self, request: pytest.FixtureRequest, models: Callable[..., str]) -> None:
        self.lora = request.param
        self.path, self.teacher = models("qwen2"), models("llama")

    def make_trainer(self, run_dir: Path) -> Trainer:
        algorithm = AlgorithmConfig(learning_rate=1e-2, minibatches=2, epochs=2, token_budget=60)
        return make_distillation(self.path, self.teacher, run_dir, algorithm, self.lora)


def sampled(b: TrainBatch) -> list[tuple[list[int], int, float]]:
    """Of every sampled token its sequence, its place there and its temperature."""
    found = []
    for tree in b.trees:
        (segment,) = tree.segments
        for span in segment.spans:
            temperature = b.calls[span.call].temperature
            places = range(span.offset, span.offset + span.length)
            found += [(segment.token_ids, place, temperature) for place in places]
    return found


def distributions(b: TrainBatch, module: torch.nn.Module) -> torch.Tensor:
    """[N, vocabulary] logprobs that were there for every sampled token; with gradients."""
    rows = []
    for ids, place, temperature in sampled(b):
        logits = module(torch.tensor([ids]), use_cache=False).logits[0, place - 1].float()
        rows.append(torch.log_softmax(logits / temperature, -1))
    return torch.stack(rows)


def divergence(student: torch.Tensor, teacher: torch.Tensor, beta: float) -> torch.Tensor:
    """[N] from [N, vocabulary] logprobs: equation 1 of arXiv:2306.13649, KL at its ends."""

    def kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        return (p.exp() * (p - q)).sum(-1)

    if beta == 0.0:
        return kl(teacher, student)
    if beta == 1.0:
        return kl(student, teacher)
    mixture = (beta * teacher.exp() + (1 - beta) * student.exp()).log()
    return beta * kl(teacher, mixture) + (1 - beta) * kl(student, mixture)


@pytest.mark.parametrize("budget", [None, 60])
@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_loss_and_gradient_are_those_of_the_divergence_over_sampled_tokens(
    beta, budget, models, tmp_path
):
    b = batch(temperatures=(0.7, 1.2), noise=0.3)
    algorithm = AlgorithmConfig(token_budget=budget)
    report = make_distillation(models(), models("llama"), tmp_path, algorithm, beta=beta).step(b)
    student, teacher = load(models()), load(models("llama"))
    mine = distributions(b, student)
    with torch.no_grad():
        theirs = distributions(b, teacher)
    loss = divergence(mine, theirs, beta).mean()
    loss.backward()
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in student.parameters()))
    assert report.metrics["loss"] == pytest.approx(float(loss.detach()), rel=1e-4)
    assert report.metrics["grad_norm"] == pytest.approx(norm, rel=1e-3)
    chosen = torch.tensor([ids[place] for ids, place, _ in sampled(b)])[:, None]
    mine, theirs = mine.detach().gather(1, chosen), theirs.gather(1, chosen)
    assert report.metrics["teacher_logprob"] == pytest.approx(float(theirs.mean()), rel=1e-4)
    assert report.metrics["teacher_kl"] == pytest.approx(float((mine - theirs).mean()), rel=1e-3)
    assert [x for call in report.logprobs for x in call] == pytest.approx(
        mine[:, 0].tolist(), abs=1e-4
    )
    assert report.tokens_trained == len(chosen)


def test_tokens_that_were_not_sampled_have_no_loss(models, tmp_path):
    """A sequence without sampled tokens, and what comes after the last one, change nothing."""
    b = batch()
    (first,) = b.trees[0].segments
    longer = TrainTree([TrainSegment(-1, [*first.token_ids, 7, 8, 9], first.spans)])
    unsampled = TrainTree([TrainSegment(-1, [1, 2, 3, 4], [])])
    other = TrainBatch(
        b.batch_id, b.step, b.episodes, b.calls, [longer, *b.trees[1:], unsampled], b.tokens_raw
    )
    found = []
    for number, each in enumerate((b, other)):
        trainer = make_distillation(models(), models("llama"), tmp_path / str(number))
        found.append((trainer.step(each).metrics["loss"], weights(trainer)))
    assert found[0][0] == found[1][0]
    assert all(torch.equal(t, found[1][1][name]) for name, t in found[0][1].items())


def rolled_out(module: torch.nn.Module, prompts: list[list[int]], step: int) -> TrainBatch:
    """Episodes of one call of eight tokens, sampled by `module`; all rewards are the same."""
    generator = torch.Generator().manual_seed(step)
    calls, trees = [], []
    for number, prompt in enumerate(prompts):
        ids, logprobs = list(prompt), []
        for _ in range(8):
            with torch.no_grad():
                logits = module(torch.tensor([ids]), use_cache=False).logits[0, -1].float()
            scores = torch.log_softmax(logits, -1)
            ids.append(int(torch.multinomial(scores.exp(), 1, generator=generator)))
            logprobs.append(float(scores[ids[-1]]))
        calls.append(TrainCall(f"c{number}", number, 0.0, 1.0, logprobs, [step - 1] * 8))
        spans = [TrainSpan(len(prompt), number, 0, 8)]
        trees.append(TrainTree([TrainSegment(-1, ids, spans)]))
    episodes = [TrainEpisode(f"e{i}", "task", 0.0) for i in range(len(prompts))]
    return TrainBatch(f"b{step}", step, episodes, calls, trees, sum(t.tokens for t in trees))


def prompts(count: int, seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCAB, (count, 6), generator=generator).tolist()


def kl_on(held_out: list[list[int]], student: torch.nn.Module, teacher: torch.nn.Module) -> float:
    """Mean reverse KL divergence of the token after each prompt."""
    values = []
    for ids in held_out:
        mine, theirs = (full_logprobs(m, [*ids, 0], 1.0)[-1:] for m in (student, teacher))
        values.append(float(divergence(mine, theirs, 1.0)))
    return math.fsum(values) / len(values)


@pytest.mark.parametrize("lora", [None, LORA])
def test_the_student_approaches_the_teacher_where_it_was_not_trained(lora, models, tmp_path):
    algorithm = AlgorithmConfig(learning_rate=1e-2 if lora else 3e-3)
    trainer = make_distillation(models(), models("llama"), tmp_path, algorithm, lora)
    teacher, held_out = load(models("llama")), prompts(24, seed=999)
    before = kl_on(held_out, load(models()), teacher)
    gaps = []
    for step in range(1, 31):
        report = trainer.step(rolled_out(trainer.policy.module, prompts(16, step), step))
        trainer.publish("safetensors_dir", step)
        gaps.append(report.metrics["logprob_gap"])
        assert report.metrics["no_signal"] == 0.0
    trainer.export(tmp_path / "export")
    assert kl_on(held_out, load(str(tmp_path / "export")), teacher) < 0.8 * before
    assert max(gaps) < 1e-4


def test_a_student_that_is_its_teacher_has_nothing_to_learn(models, tmp_path):
    report = make_distillation(models(), models(), tmp_path).step(batch())
    assert report.metrics["loss"] == pytest.approx(0.0, abs=1e-5)
    assert report.metrics["teacher_kl"] == pytest.approx(0.0, abs=1e-5)


def test_the_teacher_stays_as_it_is_and_is_in_no_checkpoint(models, tmp_path):
    algorithm = AlgorithmConfig(learning_rate=1e-2)
    trainer = make_distillation(models(), models("llama"), tmp_path / "run", algorithm)
    teacher = trainer.policy.trainer.teacher_model
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    trainer.step(batch())
    assert all(torch.equal(before[name], t) for name, t in teacher.state_dict().items())
    trainer.save(tmp_path / "checkpoint")
    written = sum(file.stat().st_size for file in (tmp_path / "checkpoint").iterdir())
    parameters = sum(p.numel() for p in trainer.policy.module.parameters())
    assert written < 3.2 * 4 * parameters


def test_a_half_precision_student_learns_from_a_teacher_in_full_precision(models, tmp_path):
    algorithm, model = AlgorithmConfig(learning_rate=3e-3), models(dtype="bfloat16")
    trainer = make_distillation(
        model, models("llama"), tmp_path, algorithm, dtype="bfloat16", teacher_dtype="float32"
    )
    b = batch()
    losses = [trainer.step(b).metrics["loss"] for _ in range(6)]
    with torch.no_grad():
        mine = distributions(b, load(model))
        theirs = distributions(b, load(models("llama")))
    assert losses[0] == pytest.approx(float(divergence(mine, theirs, 1.0).mean()), rel=0.03)
    assert losses[-1] < 0.9 * losses[0]


def test_a_teacher_that_caps_its_logits_is_for_calls_of_temperature_1(models, tmp_path):
    trainer = make_distillation(models(), models("gemma2"), tmp_path)
    with pytest.raises(TrainerError, match="temperature"):
        trainer.step(batch(temperatures=(0.7, 1.0)))
    b = batch()
    with torch.no_grad():
        mine, theirs = (distributions(b, load(models(kind))) for kind in ("qwen2", "gemma2"))
    wanted = float(divergence(mine, theirs, 1.0).mean())
    assert trainer.step(b).metrics["loss"] == pytest.approx(wanted, rel=1e-4)


def test_scaled_logits_are_scored_as_the_model_scales_them(tmp_path):
    config = GraniteConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        logits_scaling=4.0,
        initializer_range=0.5,
    )
    assert logit_scale(config) == 0.25
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    path = str(tmp_path / "model")
    report = make_distillation(path, path, tmp_path / "run").step(batch(load(path)))
    assert report.metrics["logprob_gap"] < 1e-4


def tokenizer_into(path: Path, tokens: list[str]) -> None:
    vocabulary = {token: number for number, token in enumerate(tokens)}
    Tokenizer(WordLevel(vocabulary, unk_token=tokens[0])).save(str(path / "tokenizer.json"))


def other_model(path: Path, vocab: int) -> str:
    config = Qwen2Config(
        vocab_size=vocab,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    return str(path)


def test_a_teacher_with_another_number_of_tokens_is_refused(models, tmp_path):
    teacher = other_model(tmp_path / "teacher", VOCAB + 8)
    with pytest.raises(ConfigError, match=f"{VOCAB + 8} tokens.* {VOCAB}") as refused:
        make_distillation(models(), teacher, tmp_path / "run")
    assert refused.value.param == "trainer.settings.teacher"


def test_a_teacher_with_other_tokens_is_refused_and_the_first_is_named(tmp_path):
    student, teacher = (other_model(tmp_path / name, 8) for name in ("student", "teacher"))
    words = ["a", "b", "c", "d"]
    tokenizer_into(Path(student), words)
    tokenizer_into(Path(teacher), ["a", "b", "d", "c"])
    with pytest.raises(ConfigError, match=r"2 tokens differ.*is 2.*'d' there and 'c' here"):
        make_distillation(student, teacher, tmp_path / "run")
    tokenizer_into(Path(teacher), words)
    make_distillation(student, teacher, tmp_path / "run").close()


@pytest.mark.parametrize("damage", ["missing", "no weights", "tokenizer"])
def test_a_teacher_that_cannot_be_read_is_refused_by_name(damage, models, tmp_path):
    student = other_model(tmp_path / "student", VOCAB)
    teacher = other_model(tmp_path / "teacher", VOCAB)
    if damage == "missing":
        teacher = str(tmp_path / "nowhere")
    elif damage == "no weights":
        (tmp_path / "teacher" / "model.safetensors").unlink()
    else:
        for path in (student, teacher):
            (Path(path) / "tokenizer.json").write_text(json.dumps({"a": 1}))
    with pytest.raises(ModelDirectoryError) as refused:
        make_distillation(student, teacher, tmp_path / "run")
    assert refused.value.param == "trainer.settings.teacher"


def test_what_policy_gradients_alone_know_is_not_honoured():
    (spec,) = (s for s in ajet_register_trainers() if s.name == "trl_distillation")
    honoured = spec.capabilities.algorithm_fields
    assert not honoured & {"advantage", "clip_low", "kl_coef", "importance", "aggregation"}
    assert {"learning_rate", "minibatches", "epochs", "token_budget"} <= honoured
