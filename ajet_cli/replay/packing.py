"""One file with everything that is needed to train a step again on another machine.

The file is a tar archive of a run directory with a single step: its store, the checkpoint before
it, and the model.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from ajet_cli.lone_trainer import LoneTrainer
from ajet_cli.replay.recorded import RecordedRun, RecordedStep
from ajet_core import __version__
from ajet_core.errors import RequestError, UnreadableFileError
from ajet_core.interfaces import SampleStore
from ajet_core.plugin import PluginManager
from ajet_installation.settings import StoreSettings
from ajet_server.store.checkpoints import CheckpointFolder, Position
from ajet_server.store.chosen_store import make_store, note_store

MODEL = "model"
_STORE = StoreSettings(name="sqlite")
_NOTE = "replay.json"
_FORMAT = 1


async def write_pack(
    run: RecordedRun,
    recorded: RecordedStep,
    trainer: LoneTrainer,
    plugins: PluginManager,
    out: Path,
) -> None:
    """Write a step to a new file.

    :param trainer: has the weights before the step.
    :raises OSError: the file cannot be written.
    """
    with TemporaryDirectory(prefix=".ajet-pack-", dir=out.parent) as aside:
        directory = Path(aside) / "run"
        directory.mkdir()
        await _write_store(run, recorded, plugins, directory)
        if (before := recorded.number - 1) > 0:
            position = Position(run.record.run_id, recorded.batch.batch_id)
            await CheckpointFolder(directory).write(before, position, trainer.save)
        shutil.copytree(run.config.model.path, directory / MODEL)
        note = {"format": _FORMAT, "agentjet": __version__, "step": recorded.number}
        (directory / _NOTE).write_text(json.dumps(note), encoding="utf-8")
        whole = Path(aside) / "pack.tar"
        with tarfile.open(whole, "w") as tar:
            # The note first, so that another file is recognised at once.
            others = {p.name for p in directory.iterdir() if p.suffix != ".lock"} - {_NOTE}
            for name in (_NOTE, *sorted(others)):
                tar.add(directory / name, arcname=name)
        whole.replace(out)


async def _write_store(
    run: RecordedRun, recorded: RecordedStep, plugins: PluginManager, directory: Path
) -> None:
    then = run.config_of(recorded.number)
    config = then.model_copy(update={"model": then.model.model_copy(update={"path": MODEL})})
    store = pack_store(directory, plugins)
    note_store(_STORE, directory)
    await store.open()
    try:
        record = replace(run.record, config_json=config.model_dump_json(), active=False, paused="")
        await store.append(record)
        for episode in recorded.episodes:
            await store.append(replace(episode.record, state="open", reward=None))
            await store.append(*episode.calls)
            await store.append(episode.record)
        await store.append(replace(recorded.batch, aborted_ids=[], credit={}))
        scores = [score for episode in recorded.episodes for score in episode.scores.values()]
        await store.append(replace(recorded.record, scores=scores, config_json=""))
    finally:
        await store.close()


@contextmanager
def unpacked(run: Path) -> Iterator[Path | None]:
    """Give the run directory of a pack within the context; None if `run` is not a file of a pack.

    :raises UnreadableFileError: the file is not a pack, damaged, or contains what no pack does.
    :raises RequestError: the file does not exist.
    """
    if run.is_dir() or run.suffix != ".tar":
        yield None
        return
    if not run.is_file():
        raise RequestError(f"{run} does not exist: give a run directory or a file of export")
    with TemporaryDirectory(prefix="ajet-replay-") as root:
        directory = Path(root)
        try:
            note = _unpack(run, directory)
        except UnreadableFileError:
            raise
        except (tarfile.TarError, OSError, ValueError, EOFError) as error:
            raise UnreadableFileError(f"{run} is damaged: {error}; copy it again") from error
        if note.get("format") != _FORMAT:
            raise UnreadableFileError(
                f"{run} has format {note.get('format')}: it needs agentjet {note.get('agentjet')}"
            )
        yield directory


def _unpack(run: Path, directory: Path) -> dict[str, Any]:
    """Unpack a file, and return its note."""
    with tarfile.open(run) as tar:
        members = tar.getmembers()
        if not members or members[0].name != _NOTE:
            raise UnreadableFileError(
                f"{run} was not written by `ajet replay export`: give such a file, or a run "
                "directory"
            )
        for member in members:
            path = PurePosixPath(member.name)
            plain = member.isdir() or (member.isreg() and not member.issparse())
            if not plain or path.is_absolute() or ".." in path.parts:
                raise UnreadableFileError(
                    f"{run} contains {member.name!r}, which no file of `ajet replay export` does"
                )
        for member in members:
            # Nothing but names and contents, so that no owner or mode of the file matters.
            target = directory / member.name
            if member.isdir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            content = tar.extractfile(member)
            assert content is not None, "the member is a regular file"
            with target.open("xb") as file:
                shutil.copyfileobj(content, file)
    note = json.loads((directory / _NOTE).read_text(encoding="utf-8"))
    if not isinstance(note, dict):
        raise UnreadableFileError(f"{run} is damaged: its note is not a JSON object; copy it again")
    return note


def pack_store(directory: Path, plugins: PluginManager) -> SampleStore:
    """Return the store of an unpacked file, whatever its `store.json` says."""
    return make_store(_STORE, plugins, directory)
