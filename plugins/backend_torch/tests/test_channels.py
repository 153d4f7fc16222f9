"""Engine and trainer together, over both weight channels."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
from ajet_backend_torch.engine import TorchEngine
from ajet_backend_torch.settings import TorchEngineSettings
from test_engine import ask, assert_exact, prompts
from test_trainer import LORA, batch, make, module_of
from tiny_models import VOCAB, load, pairwise, write_model

from ajet_core.errors import EngineError, SealError
from ajet_core.interfaces import Probe
from ajet_core.protocol import AlgorithmConfig, ModelConfig
from ajet_engines.probe import probe_ids
from ajet_server.run.probing import batch_of_one

ALGORITHM = AlgorithmConfig(learning_rate=1e-2)


@pairwise(lora=[None, LORA], channel=["in_process", "safetensors_dir"], first=["trainer", "engine"])
async def test_the_engine_serves_what_was_trained(first, channel, lora, model_dir, context):
    engine = TorchEngine(TorchEngineSettings(device="cpu"), context)
    model = ModelConfig(path=model_dir, lora=lora)
    if first == "engine":
        await engine.start(model)
    trainer = make(model_dir, context, ALGORITHM, lora)
    trainer.publish(channel, 0)
    if first == "trainer":
        await engine.start(model)
    prompt = prompts(1)[0]
    assert_exact(load(model_dir), prompt, await ask(engine, prompt))
    for version in (1, 2):
        await engine.pause()
        trainer.step(batch(step=version))
        await engine.update_weights(trainer.publish(channel, version))
        await engine.resume()
        answer = await ask(engine, prompt)
        sealed = await engine.seal()
        proof = "shared" if channel == "in_process" else "checksums"
        assert (sealed.policy_version, sealed.proof) == (version, proof)
        assert sealed.tensors > 0
        assert set(answer.versions) == {version}
        assert_exact(module_of(trainer), prompt, answer)
    await engine.close()


async def test_in_process_shares_the_parameters(model_dir, context):
    trainer = make(model_dir, context, ALGORITHM)
    trainer.publish("in_process", 4)
    engine = TorchEngine(TorchEngineSettings(device="cpu"), context)
    await engine.start(ModelConfig(path=model_dir))
    answer = await ask(engine, [1, 2])
    assert set(answer.versions) == {4}
    assert engine._model is not None
    assert engine._model.module is module_of(trainer)
    trainer.close()
    assert (await ask(engine, [1, 2])).ids
    await engine.close()


async def test_an_engine_leaves_a_shared_model_alone_when_it_loads_a_directory(
    model_dir, context, tmp_path
):
    trainer = make(model_dir, context, ALGORITHM)
    engine = TorchEngine(TorchEngineSettings(device="cpu"), context)
    trainer.publish("in_process", 0)
    await engine.start(ModelConfig(path=model_dir))
    update = trainer.publish("safetensors_dir", 1)
    other = write_model(tmp_path / "other", seed=5)
    await engine.update_weights(type(update)("safetensors_dir", 1, other))
    prompt = prompts(1)[0]
    assert_exact(load(other), prompt, await ask(engine, prompt))
    trainer.step(batch())
    assert_exact(load(other), prompt, await ask(engine, prompt))
    await engine.close()


async def test_a_model_of_another_vocabulary_is_not_adopted(model_dir, models, context):
    engine = TorchEngine(TorchEngineSettings(device="cpu"), context)
    await engine.start(ModelConfig(path=model_dir))
    trainer = make(model_dir, context)
    module_of(trainer).resize_token_embeddings(8)
    with pytest.raises(EngineError, match="vocabulary"):
        await engine.update_weights(trainer.publish("in_process", 1))
    await engine.close()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_a_probe_never_accuses_an_engine_that_follows_the_trainer(dtype, model_dir, context):
    """Whose arithmetic is another one in bfloat16."""
    trainer = make(model_dir, context, ALGORITHM, dtype=dtype)
    engine = TorchEngine(TorchEngineSettings(device="cpu"), context)
    await engine.start(ModelConfig(path=model_dir, dtype="float32"))
    ids = probe_ids(VOCAB, 512)

    def published(version):
        update = trainer.publish("safetensors_dir", version)
        (said,) = trainer.rehearse(batch_of_one("probe", ids, version + 1)).logprobs
        trainer.step(batch(step=version + 1, seed=version))
        return replace(update, checksums={}, probe=Probe(ids, said))

    proofs = []
    for version in range(20):
        update = published(version)
        await engine.update_weights(update)
        proofs.append((await engine.seal()).proof)
    assert proofs[0] == "none"
    assert set(proofs) == {"none", "probe"}
    # One that loads no more is found as soon as what it misses is more than noise.
    kept = context.run_dir / "kept"
    shutil.copytree(update.location, kept)

    async def load_no_more():
        for version in range(20, 40):
            await engine.update_weights(replace(published(version), location=str(kept)))

    with pytest.raises(SealError, match="does not serve the weights of policy version"):
        await load_no_more()
    await engine.close()
