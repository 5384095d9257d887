"""The real files, and that the forgetful ones keep and lose what they should."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from cursus_broker.log.files import Files, ReadBuffers, RealFiles, page_buffer, read_file, replace_file
from cursus_broker.log.forgetful import ForgetfulFiles, PowerLost


@pytest.fixture(params=["real", "forgetful"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    return RealFiles() if request.param == "real" else ForgetfulFiles(tmp_path)


def write(files: Files, path: Path, content: bytes, *, create: bool = True, sync: bool = False) -> None:
    descriptor = files.open(str(path), writable=True, create=create)
    assert files.writev(descriptor, (content,)) == len(content)
    if sync:
        files.fdatasync(descriptor)
    files.close(descriptor)


def test_writes_go_to_the_end_and_reads_to_a_position(files: Files, tmp_path: Path) -> None:
    descriptor = files.open(str(tmp_path / "a"), writable=True, create=True)
    assert files.writev(descriptor, (b"one ", b"two ")) == 8
    assert files.writev(descriptor, (b"three",)) == 5
    buffer = page_buffer(100)
    assert files.pread(descriptor, buffer, 4) == 9
    assert bytes(buffer[:9]) == b"two three"
    files.truncate(descriptor, 3)
    assert files.pread(descriptor, buffer, 0) == files.size(str(tmp_path / "a")) == 3
    files.close(descriptor)


def test_a_cached_read_answers_what_is_in_memory(files: Files, tmp_path: Path) -> None:
    descriptor = files.open(str(tmp_path / "a"), writable=True, create=True)
    files.writev(descriptor, (b"x" * 5000,))
    buffer = page_buffer(5000)
    # Some file systems cannot tell; then the answer is nothing and the caller reads in a thread.
    assert files.pread_cached(descriptor, buffer, 0) in (5000, 0)
    files.close(descriptor)


def test_create_insists_on_a_new_file(files: Files, tmp_path: Path) -> None:
    write(files, tmp_path / "a", b"")
    with pytest.raises(FileExistsError):
        files.open(str(tmp_path / "a"), writable=True, create=True)


def test_a_replaced_file_is_whole(files: Files, tmp_path: Path) -> None:
    path, temporary = str(tmp_path / "a"), str(tmp_path / "a.tmp")
    write(files, tmp_path / "a.tmp", b"left over")
    replace_file(files, path, b"first", temporary=temporary)
    replace_file(files, path, b"second", temporary=temporary)
    assert read_file(files, path, 100) == b"second"
    assert files.list(str(tmp_path)) == ["a"]
    with pytest.raises(OSError, match="at most 3"):
        read_file(files, path, 3)


def test_the_file_system_can_be_synced_or_says_that_it_cannot(files: Files, tmp_path: Path) -> None:
    try:
        files.sync_file_system(str(tmp_path))
    except OSError as error:
        pytest.skip(f"not here: {error}")


def test_a_read_buffer_is_reused_and_grows_for_one_read() -> None:
    buffers = ReadBuffers(100)
    buffers.take(10)[:] = b"0123456789"
    assert bytes(buffers.take(4)) == b"0123"
    assert len(buffers.take(1000)) == 1000


def outcomes(tmp_path: Path, *, sync_file: bool, sync_name: bool) -> set[bytes | None]:
    """What may be left of a file with eight bytes."""
    found: set[bytes | None] = set()
    for seed in range(60):
        root = tmp_path / str(seed)
        root.mkdir()
        files = ForgetfulFiles(root)
        write(files, root / "a", b"contents", sync=sync_file)
        if sync_name:
            files.sync_directory(str(root))
        files.power_loss(random.Random(seed))
        found.add((root / "a").read_bytes() if (root / "a").exists() else None)
    return found


def test_what_is_synced_with_its_name_survives_power_loss(tmp_path: Path) -> None:
    assert outcomes(tmp_path, sync_file=True, sync_name=True) == {b"contents"}


def test_a_name_that_is_not_synced_may_be_lost(tmp_path: Path) -> None:
    assert outcomes(tmp_path, sync_file=True, sync_name=False) == {b"contents", None}


def test_bytes_that_are_not_synced_may_be_lost_torn_or_garbled(tmp_path: Path) -> None:
    found = outcomes(tmp_path, sync_file=False, sync_name=True)
    assert {b"", b"contents"} <= found
    assert any(content and content not in b"contents" for content in found)


def test_renames_and_removals_may_be_undone(tmp_path: Path) -> None:
    names: set[frozenset[str]] = set()
    for seed in range(60):
        root = tmp_path / str(seed)
        root.mkdir()
        (root / "old").write_bytes(b"1")
        (root / "gone").write_bytes(b"2")
        files = ForgetfulFiles(root)
        files.rename(str(root / "old"), str(root / "new"))
        files.unlink(str(root / "gone"))
        files.power_loss(random.Random(seed))
        names.add(frozenset(os.listdir(root)))
    assert names == {frozenset(x) for x in (("old", "gone"), ("new", "gone"), ("old",), ("new",))}


def test_without_power_nothing_works_until_it_is_back(tmp_path: Path) -> None:
    files = ForgetfulFiles(tmp_path)
    files.cut_power_after(1)
    with pytest.raises(PowerLost):
        write(files, tmp_path / "a", b"contents")
    with pytest.raises(PowerLost):
        files.list(str(tmp_path))
    files.power_loss(random.Random(1))
    write(files, tmp_path / "b", b"contents")
