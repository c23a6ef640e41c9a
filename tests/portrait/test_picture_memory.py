"""Pictures get memory that nobody sees any more, and no more of it stays than is said."""

from __future__ import annotations

import gc
import threading

import numpy as np

from talking_avatar.engine.portrait.picture_memory import PictureMemory

SHAPE = (2, 8, 6, 3)


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def test_an_array_like_any_other() -> None:
    array = PictureMemory(SHAPE, 2).lend()
    assert (array.shape, array.dtype) == (SHAPE, np.uint8)
    assert array.flags.c_contiguous
    assert array.flags.writeable
    array[:] = 7
    assert int(array.sum()) == 7 * array.size


def test_memory_comes_back_with_the_last_view_and_not_before() -> None:
    memory = PictureMemory(SHAPE, 2)
    array = memory.lend()
    array[:] = 7
    was = address(array)
    view = array[1][2:4]
    del array
    others = [memory.lend() for _ in range(4)]
    for other in others:
        other[:] = 9
    assert was not in map(address, others)
    assert (view == 7).all()
    del view
    gc.collect()
    assert address(memory.lend()) == was


def test_what_is_kept_is_there_from_the_start() -> None:
    memory = PictureMemory(SHAPE, 3)
    ready = {address(np.frombuffer(each, np.uint8)) for each in memory._free}
    assert len(ready) == 3
    assert {address(array) for array in [memory.lend() for _ in range(3)]} == ready


def test_no_more_is_kept_than_is_said() -> None:
    memory = PictureMemory(SHAPE, 2)
    many = [memory.lend() for _ in range(9)]
    assert len(set(map(address, many))) == 9
    many.clear()
    gc.collect()
    assert len(memory._free) == 2


def test_it_may_outlive_its_lender_and_come_back_from_any_thread() -> None:
    memory = PictureMemory(SHAPE, 1)
    held = [memory.lend()]
    held[0][:] = 5
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert len(memory._free) == 1
    orphan = memory.lend()
    del memory
    gc.collect()
    orphan[:] = 6
    assert (orphan == 6).all()
