from pathlib import Path

from ajet_core.interfaces import Merger, WorkerContext
from ajet_server.embedded.settings import TrieMergerSettings
from ajet_server.embedded.trie_merger import TrieMerger
from ajet_testing.suites.merger_suite import MergerSuite


class TestTrieMerger(MergerSuite):
    def make_merger(self, run_dir: Path) -> Merger:
        return TrieMerger(TrieMergerSettings(), WorkerContext(run_dir))
