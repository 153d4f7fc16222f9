"""Two real servers with little KV cache are killed or hang in each situation: nothing is lost."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from ajet_engine_sglang.engine import SglangEngine
from ajet_engine_sglang.launch import IN_SERVER
from tiny_sglang import make_engine, model_config

from ajet_core.interfaces import ModelServers
from ajet_engines.served import ServedEngine
from ajet_testing.ascii_tokenizer import ascii_text
from ajet_testing.served_models import VOCAB, Models, ModelsCase
from ajet_testing.suites.asking import ask
from ajet_testing.suites.served_suite import ServedEngineSuite, all_up, begin_at_all, children
from ajet_testing.suites.shaping_suite import STOP

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(600),
]
# Four requests need more; SGLang sends some back to its queue then.
KV_TOKENS = 1024


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def two_servers(
    models: Models, python: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[SglangEngine]:
    with pytest.MonkeyPatch.context() as patch:
        # Seconds after which SGLang answers a health probe with no, and between two of ours.
        patch.setenv("SGLANG_HEALTH_CHECK_TIMEOUT", "5")
        # It admits requests as if they would all be short.
        patch.setenv("SGLANG_INIT_NEW_TOKEN_RATIO", "0.1")
        patch.setattr("ajet_engines.served.watch.LOOK_SECONDS", 3.0)
        late = Path(__file__).with_name("late_scheduler")
        patch.setattr("ajet_engine_sglang.launch.IN_SERVER", f"{late}{os.pathsep}{IN_SERVER}")
        engine = make_engine(
            tmp_path_factory.mktemp("run"),
            ModelServers(python=python),
            replicas=2,
            kv_tokens=KV_TOKENS,
        )
        await engine.start(model_config(models.paths[0]))
        yield engine
        await engine.close()


class TestSglangReplicas(ModelsCase, ServedEngineSuite):
    metric = "sglang:generation_tokens_total"

    # To mypy, a fixture of pytest_asyncio is a function, and the suite's, one of pytest, is not.
    @pytest_asyncio.fixture(loop_scope="session")
    async def engine(self, two_servers: SglangEngine) -> ServedEngine:  # type: ignore[override]
        return two_servers

    def module(self, which: int) -> Any:
        return self.models.module(which)

    def other_module(self) -> Any:
        return self.models.other_module()

    def victim(self, engine: ServedEngine, number: int) -> int:
        """The scheduler."""
        return next(
            pid
            for pid in children(self.server_pid(engine, number))
            if b"scheduler" in Path(f"/proc/{pid}/cmdline").read_bytes()
        )

    async def test_requests_that_wait_for_room_are_ended_by_an_update_and_go_on(
        self, engine: ServedEngine
    ) -> None:
        await self.serve(engine, 0)
        log = engine.context.run_dir / "logs" / "sglang-0.log"
        said = log.stat().st_size
        prompts = [[i, 5, 6] for i in range(16)]
        asked = [ask(engine, prompt, max_tokens=400, temperature=0.0) for prompt in prompts]
        free = await asyncio.gather(*asked)
        never = next(i for i in range(VOCAB) if not any(i in answer.ids for answer in free))
        # Of what may stop it does not know how long it gets.
        tasks = await begin_at_all(engine, prompts, 400, temperature=0.0, stop_token_ids=(never,))
        while b"#retracted_reqs" not in log.read_bytes()[said:]:
            assert not all(task.done() for task in tasks)
            await asyncio.sleep(0.02)
        await self.serve(engine, 0)
        answers = await asyncio.gather(*tasks)
        assert any(len(set(answer.versions)) == 2 for answer in answers)
        for prompt, answer in zip(prompts, answers, strict=True):
            assert len(answer.ids) == 400
            self.assert_exact(0, prompt, answer)

    async def test_a_grammar_is_kept_by_requests_that_are_sent_back_to_the_queue(
        self, engine: ServedEngine
    ) -> None:
        """They are computed again from their prompt; what was sampled stays."""
        await self.serve(engine, 0)
        log = engine.context.run_dir / "logs" / "sglang-0.log"
        said = log.stat().st_size
        options = {"grammar": f"start: /[ab]{{{300}}}/", "stop_token_ids": (STOP,)}
        prompts = [[i, 5, 6] for i in range(16)]
        # It learns from having sent some back how many it can admit, and forgets it again.
        while b"#retracted_reqs" not in log.read_bytes()[said:]:
            tasks = await begin_at_all(engine, prompts, 400, **options)
            for prompt, answer in zip(prompts, await asyncio.gather(*tasks), strict=True):
                assert len(answer.ids) == 301
                assert set(ascii_text(answer.ids[:-1])) == {"a", "b"}
                self.assert_exact(0, prompt, answer)

    async def test_a_scheduler_that_hangs_is_noticed_and_told_of(
        self, engine: ServedEngine, caplog: pytest.LogCaptureFixture
    ) -> None:
        await self.serve(engine, 1)
        prompts = [[i, 11] for i in range(8)]
        tasks = await begin_at_all(engine, prompts, 200)
        lives = engine.fleet.replicas[0].lives
        os.kill(self.victim(engine, 0), signal.SIGSTOP)
        for prompt, answer in zip(prompts, await asyncio.gather(*tasks), strict=True):
            assert len(answer.ids) == 200
            self.assert_exact(1, prompt, answer)
        assert "server 0 of sglang is replaced: it sent nothing for its" in caplog.text
        await all_up(engine)
        assert engine.fleet.replicas[0].lives == lives + 1
