"""A forked child finds every lock open, whichever thread of its parent held it."""

import os
import threading

import pytest

from stridedview import _locks

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="has no fork"),
    # JAX, if another test imported it, warns of every fork; the child has no use for it.
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),
]


def in_child(work):
    """Return the exit status of a forked child that does ``work`` within ten seconds."""
    child = os.fork()
    if child == 0:
        threading.Timer(10, os._exit, [7]).start()
        try:
            work()
        except BaseException:  # noqa: BLE001 - the child must not run the tests
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def take(lock):
    with lock:
        pass


@pytest.fixture
def held_elsewhere():
    """Have another thread hold a lock meanwhile; give the function that begins it."""
    done, threads = threading.Event(), []

    def hold(lock):
        taken = threading.Event()

        def work():
            with lock:
                taken.set()
                done.wait()

        threads.append(threading.Thread(target=work))
        threads[-1].start()
        taken.wait()

    yield hold
    done.set()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("make", [_locks.lock, _locks.rlock])
def test_lock_when_a_thread_of_the_parent_holds_it_then_the_child_takes_it(
    held_elsewhere, make
):
    lock = make()
    held_elsewhere(lock)
    assert in_child(lambda: take(lock)) == 0


def test_locks_of_the_package_when_all_are_held_then_a_child_works(held_elsewhere):
    import stridedview

    with stridedview.enabled():
        stridedview.stats()
    for lock in list(_locks._locks):
        held_elsewhere(lock)

    def work():
        with stridedview.enabled():
            stridedview.stats()
        assert stridedview.dtype([("of the child", "f4")]).itemsize == 4

    assert in_child(work) == 0


def test_locks_of_the_package_when_taken_then_no_python_code_is_interrupted():
    import stridedview

    with stridedview.enabled():
        stridedview.stats()
    kinds = {type(lock) for lock in _locks._locks}
    assert kinds <= {type(threading.Lock()), type(threading.RLock())}
    assert len(kinds) == 2
