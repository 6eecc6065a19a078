"""Launches from several threads, and without the GIL while the driver works."""

import concurrent.futures
import threading

import numpy as np
import pytest
from numba import cuda

import stridedview
from tests.standin.helpers import words_of

pytestmark = pytest.mark.standin


def fresh():
    """Return a kernel of one argument without overloads."""

    @cuda.jit
    def kernel(a):
        pass

    return kernel


def vector(size=4):
    return cuda.to_device(np.zeros(size, np.float32))


def test_launch_when_several_threads_share_a_configuration_then_each_packs_its_own(driver):
    kernel = fresh()
    arrays = [vector(size) for size in range(1, 9)]
    with stridedview.enabled():
        configuration = kernel[1, 1]
        ready = threading.Barrier(len(arrays))

        def work(index):
            ready.wait()
            for turn in range(200):
                configuration(arrays[index] if turn % 3 else index)

        with concurrent.futures.ThreadPoolExecutor(len(arrays)) as pool:
            for future in [pool.submit(work, index) for index in range(len(arrays))]:
                future.result()
    by_thread = {}
    for record in driver.launches():
        by_thread.setdefault(record.thread, set()).add(record.words)
    assert sum(len(found) for found in by_thread.values()) == 2 * len(arrays)
    expected = [{words_of(array), (index,)} for index, array in enumerate(arrays)]
    assert sorted(map(sorted, by_thread.values())) == sorted(map(sorted, expected))


def test_launch_when_the_driver_blocks_then_other_threads_have_the_gil(driver):
    kernel, array = fresh(), vector()
    with stridedview.enabled():
        kernel[1, 1](array)
        seen = []
        driver.on_launch(lambda record: seen.append(record.words), other_thread=True)
        kernel[1, 1](array)
        assert seen == [words_of(array)]


def test_launch_when_the_queue_is_full_then_it_waits_without_the_gil(driver):
    kernel, array = fresh(), vector()
    with stridedview.enabled():
        kernel[1, 1](array)
        driver.clear()
        driver.hold_launches()
        thread = threading.Thread(target=kernel[1, 1], args=(array,))
        thread.start()
        while not driver.waiting():
            pass
        assert driver.waiting() == 1
        driver.release()
        thread.join()
        assert len(driver.launches()) == 1
