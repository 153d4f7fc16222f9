"""``ajet research replicate``: the same study with seeds that it has not used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ajet_core.errors import ConfigError
from ajet_core.files import write_whole
from ajet_research.analysis import final_verdicts
from ajet_research.arenas import Arena
from ajet_research.events import AnyEvent, Registered
from ajet_research.inference import Verdict
from ajet_research.leader import run_study
from ajet_research.ledger import LEDGER, read_ledger
from ajet_research.runners import LocalRunner, TrialRunner
from ajet_research.state import fold
from ajet_research.study import canonical

_SOURCE = "study.json"


@dataclass(frozen=True, slots=True)
class Replication:
    """By comparison, the verdict of the study and the one with fresh seeds."""

    first: dict[str, Verdict]
    again: dict[str, Verdict]

    @property
    def repeated(self) -> bool:
        """Whether each verdict came out again."""
        return self.first == self.again


def replicate_study(
    directory: Path,
    target: Path,
    *,
    parallel: int = 1,
    on_event: Callable[[AnyEvent], None] | None = None,
    runner: Callable[[Path, Arena], TrialRunner] = LocalRunner,
) -> Replication:
    """Run a finished study again with the seeds after its last one.

    :param target: the directory of the new study. It is resumed if it was begun.
    :raises ConfigError: there is no finished study in `directory`.
    """
    path = directory / LEDGER
    rows = list(read_ledger(path)) if path.exists() else []
    state = fold(rows)
    if state.decided is None:
        raise ConfigError(f"There is no finished study in {directory}: ajet research run it first.")
    study = state.registered
    inference = study.inference.model_copy(update={"first_seed": study.seeds.stop})
    changes = {"inference": inference, "budget": state.budget}
    if (search := study.search) is not None:
        # Whatever is chosen again, it is chosen and confirmed on seeds that no row has.
        first_seed = max(search.seeds.stop, study.seeds.stop + len(study.seeds))
        changes["search"] = search.model_copy(update={"first_seed": first_seed})
        inference = inference.model_copy(
            update={"first_seed": max(study.seeds.stop, first_seed + len(search.seeds))}
        )
        changes["inference"] = inference
    # It may cost what the first one did, with its amendments.
    fresh = study.model_copy(update=changes)
    source = target / _SOURCE
    if not (target / LEDGER).exists():
        target.mkdir(parents=True, exist_ok=True)
        content = canonical(fresh.model_dump(mode="json", by_alias=True))
        write_whole(source, content.encode(), mode=0o644)
    elif fold(read_ledger(target / LEDGER)).digest != fresh.digest():
        raise ConfigError(f"{target} has another study. Choose another directory with --dir.")
    first = rows[0].event
    assert isinstance(first, Registered)
    # Relative paths mean what they meant in the first study.
    base = Path(first.directory) if first.directory else None
    again = run_study(
        source,
        target,
        parallel=parallel,
        on_event=on_event,
        runner=runner,
        base=base,
        files=first.files,
    )
    return Replication(final_verdicts(state), final_verdicts(again))
