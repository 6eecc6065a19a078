# The fast call's C face. See _launch.pyx.

from cpython.object cimport PyObject

from stridedview._configuration cimport LaunchConfiguration
from stridedview._pack cimport Call
from stridedview._plan cimport Plan


# Queue a launch whose parameters are packed, in the current context: the stream is chosen
# and ordered. Returns 0, or another TRY result (see _launch.pyx).
cdef int launch_packed(LaunchConfiguration configuration, Plan plan, char* buffer,
                       Call* call, PyObject** args) except -1

# Whether plans may be used now; False also while launches are observed.
cdef bint is_fast() noexcept
cdef bint is_observed() noexcept
# Tell the observers of a launch that took `duration` nanoseconds.
cdef int observed(LaunchConfiguration configuration, tuple args, long long duration) except -1
# A plan for arguments, made anew if there is none; nothing is launched. Raises if no plan
# can take them.
cdef Plan plan_of(LaunchConfiguration configuration, tuple args)
