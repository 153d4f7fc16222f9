"""Chains of differences between versions of the weights."""

from __future__ import annotations

import functools
import http.server
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ajet_core.errors import ConfigError, EngineError, TrainerError
from ajet_engines.deltas import ChainEntry, ChainReader, ChainWriter, LocalWeights
from ajet_engines.deltas.chain import INDEX, Chain, Storage, read_chain
from ajet_engines.deltas.difference import apply_difference, difference
from tests.support.tiers import examples

Tensors = dict[str, np.ndarray[Any, Any]]

DTYPES = {1: "F8_E4M3", 2: "BF16", 4: "F32", 8: "F64"}


def weights(directory: Path, tensors: Tensors, **others: str) -> Path:
    """Write a directory of weights."""
    directory.mkdir(parents=True)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    content, position = b"", 0
    for name, array in tensors.items():
        stop = position + array.nbytes
        header[name] = {
            "dtype": DTYPES[array.itemsize],
            "shape": list(array.shape),
            "data_offsets": [position, stop],
        }
        content, position = content + array.tobytes(), stop
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    whole = len(text).to_bytes(8, "little") + text + content
    (directory / "model.safetensors").write_bytes(whole)
    for name, other in others.items():
        (directory / f"{name}.json").write_text(other, encoding="utf-8")
    return directory


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def small(entry: ChainEntry) -> int:
    assert entry.difference is not None
    return entry.difference.size


def places(cache: Path, pattern: str = "*-v*") -> list[Path]:
    """The directories of the only reader."""
    (home,) = cache.glob("reader-*")
    return sorted(path for path in home.glob(pattern) if not path.name.startswith("."))


def halves(size: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 2**16, size, np.uint16)


class Versions:
    """A trainer whose tensors change a little from version to version."""

    def __init__(self, root: Path, size: int = 20_000) -> None:
        self.root = root
        self.values = halves(size)
        self.version = 0

    def next(self, changed: int = 50) -> tuple[Path, int]:
        self.version += 1
        rng = np.random.default_rng(self.version)
        chosen = rng.choice(len(self.values), changed, replace=False)
        self.values[chosen] ^= rng.integers(1, 16, changed, np.uint16)
        place = self.root / f"v{self.version}"
        return weights(place, {"w": self.values}, config="{}"), self.version


@pytest.fixture
def trainer(tmp_path: Path) -> Versions:
    return Versions(tmp_path / "trained")


@pytest.fixture
def writer(tmp_path: Path) -> ChainWriter:
    return ChainWriter(str(tmp_path / "chain"))


@pytest.fixture
def reader(tmp_path: Path) -> ChainReader:
    return ChainReader(str(tmp_path / "chain"), tmp_path / "cache")


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_difference_gives_exactly_the_new_directory(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    root = tmp_path_factory.mktemp("difference")
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    old: Tensors = {}
    for i in range(data.draw(st.integers(0, 4))):
        width = data.draw(st.sampled_from([1, 2, 4, 8]))
        count = data.draw(st.integers(0, 300))
        old[f"t{i}"] = rng.integers(0, 256, count * width, np.uint8).view(f"u{width}")
    new = {name: array.copy() for name, array in old.items()}
    for array in new.values():
        share = data.draw(st.sampled_from([0, 0.01, 0.3, 1]))
        array[rng.random(len(array)) < share] ^= 1
    if data.draw(st.booleans()):
        new["added"] = halves(7)
    before = weights(root / "old", old, config="{}", gone="1")
    after = weights(root / "new", new, config=data.draw(st.sampled_from(["{}", '{"a": 1}'])))
    packed = difference(before, after)
    (root / "made").mkdir()
    apply_difference(packed, before, root / "made")
    assert content(root / "made") == content(after)
    apply_difference(packed, before, before)
    assert content(before) == content(after)


def test_a_reader_follows_with_few_bytes(
    trainer: Versions, writer: ChainWriter, reader: ChainReader
) -> None:
    directory, version = trainer.next()
    full = writer.publish(directory, version)
    assert reader.read().size == full.size
    for _ in range(3):
        directory, version = trainer.next()
        entry = writer.publish(directory, version)
        reading = reader.read(version, writer.chain)
        assert (reading.size, reading.differences) == (small(entry), 1)
        assert content(reading.directory) == content(directory)
    assert small(entry) < 0.03 * full.size
    assert reader.read(version).size == 0


def test_a_reader_that_joins_or_missed_versions_reads_what_it_lacks(
    trainer: Versions, writer: ChainWriter, reader: ChainReader, tmp_path: Path
) -> None:
    published = [trainer.next() for _ in range(6)]
    entries = [writer.publish(*published[0])]
    reader.read()
    entries += [writer.publish(*one) for one in published[1:]]
    reading = reader.read()
    assert (reading.size, reading.differences) == (sum(map(small, entries[1:])), 5)
    new = ChainReader(str(tmp_path / "chain"), tmp_path / "other").read(4)
    differences = sum(map(small, entries[1:4]))
    assert (new.size, new.differences) == (entries[0].size + differences, 3)
    assert content(new.directory) == content(published[3][0])
    assert content(reading.directory) == content(published[5][0])


def test_all_files_are_written_again_before_differences_become_large(
    trainer: Versions, writer: ChainWriter, reader: ChainReader, tmp_path: Path
) -> None:
    for _ in range(12):
        directory, version = trainer.next(changed=4000)
        writer.publish(directory, version)
    chain = read_chain(Storage(str(tmp_path / "chain")))
    assert chain is not None
    full = [entry.version for entry in chain.entries if entry.files]
    assert len(full) == 2, "two full versions are kept, so that readers can finish"
    assert chain.entries[0].version == full[0] > 1
    assert content(reader.read().directory) == content(directory)
    with pytest.raises(EngineError, match=r"no version 1; its newest version is 12$"):
        reader.read(1)
    named = {file.path for entry in chain.entries for file in entry.stored}
    before_last_publish = {path.name for path in (tmp_path / "chain").iterdir()} - {INDEX}
    assert named <= before_last_publish
    assert len(before_last_publish - named) < 8, "what the index no longer names is removed"


def test_a_run_that_was_set_back_begins_a_new_chain(
    trainer: Versions, writer: ChainWriter, reader: ChainReader
) -> None:
    first, second, third = (trainer.next()[0] for _ in range(3))
    writer.publish(first, 5)
    writer.publish(second, 6)
    reader.read()
    before = writer.chain
    writer.publish(third, 6)
    assert writer.chain != before
    assert content(reader.read(6, writer.chain).directory) == content(third)
    with pytest.raises(EngineError, match="another trainer"):
        reader.read(6, before)


def test_all_files_are_written_if_the_last_version_is_gone(
    trainer: Versions, writer: ChainWriter, reader: ChainReader
) -> None:
    first, version = trainer.next()
    writer.publish(first, version)
    shutil.rmtree(first)
    second, version = trainer.next()
    assert writer.publish(second, version).base is None
    assert content(reader.read().directory) == content(second)


def test_a_new_writer_replaces_the_chain_and_removes_its_files(
    trainer: Versions, writer: ChainWriter, reader: ChainReader, tmp_path: Path
) -> None:
    writer.publish(*trainer.next())
    writer.publish(*trainer.next())
    reader.read()
    another = ChainWriter(str(tmp_path / "chain"))
    for _ in range(2):
        directory, version = trainer.next()
        another.publish(directory, version)
    assert content(reader.read().directory) == content(directory)
    names = [path.name for path in (tmp_path / "chain").iterdir()]
    assert all(name == INDEX or name.startswith(another.chain) for name in names)


def test_the_cache_keeps_two_versions(
    trainer: Versions, writer: ChainWriter, reader: ChainReader, tmp_path: Path
) -> None:
    for _ in range(4):
        writer.publish(*trainer.next())
        reader.read()
    versions = [path.name[-9:] for path in places(tmp_path / "cache")]
    assert versions == ["000000003", "000000004"]


def test_a_spare_directory_is_changed_instead_of_copying_the_newest(
    trainer: Versions, writer: ChainWriter, reader: ChainReader, tmp_path: Path
) -> None:
    served: LocalWeights | None = None
    before: dict[str, bytes] = {}
    for version in range(1, 6):
        directory, _ = trainer.next()
        entry = writer.publish(directory, version)
        spares = places(tmp_path / "cache", "*.spare") if served is not None else []
        inodes = {(spare / "model.safetensors").stat().st_ino for spare in spares}
        reading = reader.read(version, writer.chain)
        assert content(reading.directory) == content(directory)
        if served is not None:
            (reused,) = inodes
            assert (reading.directory / "model.safetensors").stat().st_ino == reused
            assert reading.size == small(entry)
            assert content(served.directory) == before, "the version in use must not change"
        reader.prepare(reading)
        served, before = reading, content(directory)
        (spare,) = places(tmp_path / "cache", "*.spare")
        assert content(spare) == before
        assert len(places(tmp_path / "cache")) == 2


def test_a_spare_directory_that_was_damaged_is_not_used(
    trainer: Versions, writer: ChainWriter, reader: ChainReader, tmp_path: Path
) -> None:
    writer.publish(*trainer.next())
    reader.prepare(reader.read())
    (spare,) = places(tmp_path / "cache", "*.spare")
    damaged = bytearray((spare / "model.safetensors").read_bytes())
    damaged[-1] ^= 1
    (spare / "model.safetensors").write_bytes(damaged)
    directory, _ = trainer.next()
    writer.publish(directory, 2)
    assert content(reader.read().directory) == content(directory)


@pytest.mark.parametrize("position", [0, 20, 200, -1])
def test_a_damaged_difference_is_refused_and_leaves_no_directory(
    trainer: Versions, writer: ChainWriter, reader: ChainReader, tmp_path: Path, position: int
) -> None:
    writer.publish(*trainer.next())
    reader.read()
    entry = writer.publish(*trainer.next())
    assert entry.difference is not None
    path = tmp_path / "chain" / entry.difference.path
    damaged = bytearray(path.read_bytes())
    damaged[position] ^= 4
    path.write_bytes(damaged)
    with pytest.raises(EngineError, match=r"\.delta at .* is damaged"):
        reader.read()
    assert len(places(tmp_path / "cache")) == 1


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 2**30), bit=st.integers(0, 7))
def test_any_wrong_bit_of_a_difference_is_found_without_its_digest(
    tmp_path_factory: pytest.TempPathFactory, position: int, bit: int
) -> None:
    root = tmp_path_factory.mktemp("damaged")
    values = halves(300)
    old = weights(root / "old", {"w": values})
    values[::100] ^= 3
    new = weights(root / "new", {"w": values})
    packed = bytearray(difference(old, new))
    packed[position % len(packed)] ^= 1 << bit
    (root / "made").mkdir()
    try:
        apply_difference(bytes(packed), old, root / "made")
    except EngineError:
        return
    # Names of tensors and numbers that only inform are not needed to apply it.
    assert content(root / "made") == content(new)


def test_a_difference_from_other_weights_is_refused(tmp_path: Path) -> None:
    values = halves(1000)
    old = weights(tmp_path / "old", {"w": values})
    other = weights(tmp_path / "other", {"w": values ^ 2})
    new = weights(tmp_path / "new", {"w": values ^ 1})
    (tmp_path / "made").mkdir()
    with pytest.raises(
        EngineError, match=r"the tensor w .* is not the one that the difference is from"
    ):
        apply_difference(difference(old, new), other, tmp_path / "made")
    shutil.rmtree(old)
    old.mkdir()
    with pytest.raises(EngineError, match=r"model\.safetensors is missing"):
        apply_difference(difference(other, new), old, tmp_path / "made")


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        ("", "is not the index of a chain"),
        ("{}", "is not the index of a chain"),
        ('{"chain": "../../../etc/00", "entries": []}', "is not the index of a chain"),
        (
            '{"chain": "0123456789abcdef", "entries": [{"version": 1, "files": [{"name": '
            '"../up", "path": "a", "size": 1, "sha256": "%s"}]}]}' % ("0" * 64),
            "'../up' is not a plain file name",
        ),
        ('{"chain": "0123456789abcdef"}', "there are no weights"),
    ],
)
def test_a_bad_index_is_refused(
    reader: ChainReader, tmp_path: Path, index: str, reason: str
) -> None:
    (tmp_path / "chain").mkdir()
    (tmp_path / "chain" / INDEX).write_text(index, encoding="utf-8")
    with pytest.raises(EngineError, match=reason):
        reader.read()


def test_a_chain_without_the_base_is_refused(
    trainer: Versions, writer: ChainWriter, tmp_path: Path
) -> None:
    writer.publish(*trainer.next())
    writer.publish(*trainer.next())
    index = tmp_path / "chain" / INDEX
    chain = json.loads(index.read_text(encoding="utf-8"))
    del chain["entries"][0]
    index.write_text(json.dumps(chain), encoding="utf-8")
    with pytest.raises(EngineError, match="a difference from version 1, which the chain does"):
        ChainReader(str(tmp_path / "chain"), tmp_path / "cache").read()


def test_bad_urls_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"weights\.url: cannot use 'gopher://host/a'"):
        ChainWriter("gopher://host/a")
    with pytest.raises(EngineError, match="there are no weights at"):
        ChainReader(str(tmp_path / "empty"), tmp_path / "cache").read()
    (tmp_path / "file").write_text("", encoding="utf-8")
    place = weights(tmp_path / "w", {"w": halves(3)})
    with pytest.raises(TrainerError, match="cannot write the weights of version 1"):
        ChainWriter(str(tmp_path / "file")).publish(place, 1)


def test_a_failed_publish_is_followed_by_a_whole_one(
    trainer: Versions, writer: ChainWriter, reader: ChainReader, tmp_path: Path
) -> None:
    writer.publish(*trainer.next())
    chain = tmp_path / "chain"
    chain.rename(tmp_path / "aside")
    chain.write_text("", encoding="utf-8")
    with pytest.raises(TrainerError):
        writer.publish(*trainer.next())
    chain.unlink()
    (tmp_path / "aside").rename(chain)
    directory, version = trainer.next()
    assert writer.publish(directory, version).base is None
    assert content(reader.read(version, writer.chain).directory) == content(directory)


def test_each_reader_has_a_place_in_the_cache_and_takes_over_a_free_one(
    trainer: Versions, writer: ChainWriter, tmp_path: Path
) -> None:
    def reader() -> ChainReader:
        return ChainReader(str(tmp_path / "chain"), tmp_path / "cache")

    full = writer.publish(*trainer.next())
    one, other = reader(), reader()
    assert [one.read().size, other.read().size] == [full.size, full.size]
    directory, _ = trainer.next()
    entry = writer.publish(directory, 2)
    one.prepare(one.read())
    assert content(other.read().directory) == content(directory)
    one.close()
    third = reader()
    assert third.read().size == 0
    other.close()
    fourth, fifth = reader(), reader()
    assert [fourth.read().size, fifth.read().size] == [0, full.size + small(entry)]


def test_a_cache_of_another_user_is_refused(
    trainer: Versions,
    writer: ChainWriter,
    reader: ChainReader,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer.publish(*trainer.next())
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    with pytest.raises(EngineError, match=r"weights\.cache: .* belongs to another user"):
        reader.read()


def test_a_damaged_local_version_is_read_again_from_the_chain(
    trainer: Versions, writer: ChainWriter, reader: ChainReader
) -> None:
    writer.publish(*trainer.next())
    local = reader.read().directory / "model.safetensors"
    damaged = bytearray(local.read_bytes())
    damaged[-1] ^= 1
    local.write_bytes(damaged)
    directory, _ = trainer.next()
    writer.publish(directory, 2)
    assert content(reader.read().directory) == content(directory)


def test_a_follower_reads_the_difference_to_a_full_version(
    trainer: Versions, writer: ChainWriter, reader: ChainReader
) -> None:
    sizes = []
    for version in range(1, 12):
        directory, _ = trainer.next(changed=4000)
        entry = writer.publish(directory, version)
        sizes.append((reader.read().size, small(entry) if version > 1 else entry.size))
        if version > 1 and entry.files:
            break
    assert entry.files
    assert [read for read, _ in sizes] == [least for _, least in sizes]


def test_a_new_reader_never_reads_more_than_one_and_a_half_times_the_weights(
    trainer: Versions, writer: ChainWriter, tmp_path: Path
) -> None:
    full = 0
    for version in range(1, 25):
        changed = 20_000 if version % 7 == 0 else 1500
        full = writer.publish(trainer.next(changed)[0], version).size or full
        new = ChainReader(str(tmp_path / "chain"), tmp_path / f"cache-{version}").read()
        assert new.size <= 1.5 * full


def test_files_of_a_process_that_failed_are_removed(trainer: Versions, tmp_path: Path) -> None:
    chain = tmp_path / "chain"
    first = ChainWriter(str(chain))
    first.publish(*trainer.next())
    (chain / "0123456789abcdef-v000000009-model.safetensors").write_bytes(b"half")
    (chain / "notes.txt").write_text("of somebody else", encoding="utf-8")
    second = ChainWriter(str(chain))
    for _ in range(2):
        second.publish(*trainer.next())
    index = Chain.model_validate_json((chain / INDEX).read_bytes())
    named = {file.path for entry in index.entries for file in entry.stored}
    assert {path.name for path in chain.iterdir()} == {INDEX, "notes.txt", *named}


def test_a_run_that_is_set_back_after_a_failed_publish_has_another_chain(
    trainer: Versions, writer: ChainWriter, reader: ChainReader, tmp_path: Path
) -> None:
    writer.publish(trainer.next()[0], 5)
    writer.publish(trainer.next()[0], 6)
    reader.read(6)
    before = writer.chain
    with pytest.raises(TrainerError):
        writer.publish(tmp_path / "missing", 7)
    directory, _ = trainer.next()
    writer.publish(trainer.next()[0], 5)
    writer.publish(directory, 6)
    assert writer.chain != before
    assert content(reader.read(6, writer.chain).directory) == content(directory)


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """A web server for the directory of the chain."""
    (tmp_path / "chain").mkdir()
    handler = functools.partial(_Quiet, directory=str(tmp_path / "chain"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


@pytest.mark.processes
def test_a_chain_behind_a_web_server(
    trainer: Versions, writer: ChainWriter, web: str, tmp_path: Path
) -> None:
    pytest.importorskip("aiohttp")
    reader = ChainReader(web, tmp_path / "cache")
    with pytest.raises(EngineError, match="there are no weights at http"):
        reader.read()
    for _ in range(3):
        directory, version = trainer.next()
        entry = writer.publish(directory, version)
        reading = reader.read(version, writer.chain)
        assert content(reading.directory) == content(directory)
    assert reading.size == small(entry)


@pytest.mark.processes
@pytest.mark.parametrize("status", [403, 503])
def test_a_web_server_that_refuses_is_not_taken_for_an_empty_chain(
    tmp_path: Path, status: int
) -> None:
    pytest.importorskip("aiohttp")

    class Refusing(_Quiet):
        def do_GET(self) -> None:
            self.send_error(status)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            reader = ChainReader(f"http://127.0.0.1:{server.server_port}", tmp_path / "cache")
            with pytest.raises(EngineError, match=rf"cannot read the weights at http.*{status}"):
                reader.read()
        finally:
            server.shutdown()
            thread.join()


def test_a_chain_in_an_object_store(trainer: Versions, tmp_path: Path) -> None:
    url = "memory://bucket/run"
    writer, reader = ChainWriter(url), ChainReader(url, tmp_path / "cache")
    for _ in range(3):
        directory, version = trainer.next()
        writer.publish(directory, version)
        assert content(reader.read().directory) == content(directory)
    with pytest.raises(TrainerError, match="cannot write"):
        ChainWriter("http://127.0.0.1:9/weights").publish(directory, version)
