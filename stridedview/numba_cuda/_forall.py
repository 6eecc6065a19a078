"""``kernel.forall(n)`` on the launch path.

Owns the replacement of ``ForAll.__call__``: Numba types the arguments and asks the driver
for a block size at every call; here both are kept by signature.
"""

from __future__ import annotations

from time import perf_counter_ns

from numba.cuda import dispatcher as numba_dispatcher
from numba.cuda.cudadrv import devices

from stridedview import _configuration, _driver, _launch, _stats
from stridedview._dynamo import Undisturbed
from stridedview.numba_cuda import _checks, _contexts, _plans, _routes

ENTRIES_KEPT = 1024


def call(self, *args):
    """Launch over ``ntasks`` tasks, in blocks of the size that the driver recommends."""
    if self.ntasks == 0:
        return None
    start = perf_counter_ns() if _launch.is_watched() else 0
    specialized, block = _prepared(self, args)
    grid = (self.ntasks + block - 1) // block
    configuration = specialized[grid, block, self.stream, self.sharedmem]
    if start:
        # Its compilation is a part of the launch, as it is of any other.
        return _launch.launch_since(configuration, args, start)
    return configuration(*args)


def _prepared(self, args):
    words, device = _launch.signature_words(self.dispatcher, args)
    if words is None:
        device = _routes.device_of(self.dispatcher, args)
    state = _configuration.dispatcher_state(self.dispatcher)
    key = (words, _driver.current_context_id(), self.thread_per_block, self.sharedmem)
    found = state.prepared.get(key) if words is not None else None
    if found is None or found[0] != state.generation:
        found = (state.generation, *_prepare(self, args, words, device))
        if words is not None:
            if len(state.prepared) >= ENTRIES_KEPT:
                state.prepared.clear()
            state.prepared[key] = found
    return found[1:]


@Undisturbed
def _prepare(self, args, words, device):
    dispatcher = specialized = self.dispatcher
    with _plans.relaxed_capture(), _contexts.on_device(device):
        if not dispatcher.specialized:
            limits = devices.get_context().device
            standing = _checks.checked(dispatcher, args, words, limits)
            with _stats.compiling(dispatcher):
                specialized = dispatcher.specialize(*standing)
        _contexts.refresh(next(iter(specialized.overloads.values())))
        block = numba_dispatcher.ForAll._compute_thread_per_block(self, specialized)
    return specialized, block
