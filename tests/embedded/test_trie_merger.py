from pathlib import Path

import pytest

from ajet_core.interfaces import Merger, MergerPromises, WorkerContext
from ajet_server.embedded.settings import TrieMergerSettings
from ajet_server.embedded.trie import MergePolicy
from ajet_server.embedded.trie_merger import TrieMerger
from ajet_testing.suites.merger_suite import MergerSuite


class TestTrieMerger(MergerSuite):
    policy: MergePolicy = "exact"

    def make_merger(self, run_dir: Path) -> Merger:
        return TrieMerger(TrieMergerSettings(policy=self.policy), WorkerContext(run_dir))


class TestTrieMergerByText(TestTrieMerger):
    policy = "text"


class TestTrieMergerWithoutTools(TestTrieMerger):
    policy = "ignore_tools"


@pytest.mark.parametrize("policy", ["exact", "text", "ignore_tools"])
def test_only_the_policy_exact_is_exact(policy: MergePolicy) -> None:
    merger = TrieMerger(TrieMergerSettings(policy=policy), WorkerContext(Path()))
    assert merger.promises == MergerPromises(exact=policy == "exact", shares=True)
