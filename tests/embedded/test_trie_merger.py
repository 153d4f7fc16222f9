from pathlib import Path

from ajet_core.embedded.trie_merger import TrieMerger
from ajet_core.interfaces import ComponentSettings, Merger, WorkerContext
from ajet_core.testing.merger_suite import MergerSuite


class TestTrieMerger(MergerSuite):
    def make_merger(self, run_dir: Path) -> Merger:
        return TrieMerger(ComponentSettings(), WorkerContext(run_dir))
