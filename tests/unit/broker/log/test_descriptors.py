from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from cursus_broker.log.descriptors import DescriptorPool
from cursus_broker.log.files import RealFiles


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    made = [tmp_path / str(number) for number in range(20)]
    for path in made:
        path.write_bytes(path.name.encode())
    return [str(path) for path in made]


def is_open(descriptor: int) -> bool:
    return os.path.exists(f"/proc/self/fd/{descriptor}")


def test_the_least_recently_used_descriptor_goes_first(paths: list[str]) -> None:
    pool = DescriptorPool(RealFiles(), 3)
    for path in paths[:3]:
        pool.release(pool.acquire(path))
    pool.release(pool.acquire(paths[0]))
    pool.release(pool.acquire(paths[3]))
    assert pool.acquire_open(paths[1]) is None
    assert pool.acquire_open(paths[0]) is not None
    pool.close()


def test_a_borrowed_descriptor_outlives_the_bound_and_being_forgotten(paths: list[str]) -> None:
    pool = DescriptorPool(RealFiles(), 2)
    borrowed = pool.acquire(paths[0])
    for path in paths[1:6]:
        pool.release(pool.acquire(path))
    pool.forget(paths[0])
    assert os.pread(borrowed.descriptor, 10, 0) == b"0"
    pool.release(borrowed)
    assert not is_open(borrowed.descriptor)
    pool.close()


def test_more_than_the_bound_are_closed_as_soon_as_they_are_given_back(paths: list[str]) -> None:
    pool = DescriptorPool(RealFiles(), 2)
    borrowed = [pool.acquire(path) for path in paths[:6]]
    assert len(pool) == 6
    for handle in borrowed:
        pool.release(handle)
    assert len(pool) == 2
    pool.close()
    assert len(pool) == 0


def test_a_writer_gets_a_writable_descriptor_after_a_reader(paths: list[str]) -> None:
    pool = DescriptorPool(RealFiles(), 4)
    reader = pool.acquire(paths[0])
    with pool.lease(paths[0], writable=True) as writer:
        assert os.writev(writer.descriptor, (b"!",)) == 1
        assert os.pread(reader.descriptor, 10, 0) == b"0!"
    pool.release(reader)
    pool.close()


def test_many_threads_share_few_descriptors(paths: list[str]) -> None:
    pool = DescriptorPool(RealFiles(), 4)
    wrong: list[str] = []

    def read(first: int) -> None:
        for step in range(300):
            path = paths[(first + step * 7) % len(paths)]
            with pool.lease(path) as handle:
                if os.pread(handle.descriptor, 10, 0).decode() != os.path.basename(path):
                    wrong.append(path)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(pool) <= 4
    pool.close()
