# The fast call's C face. See _launch.pyx.

from cpython.object cimport PyObject

from stridedview._configuration cimport LaunchConfiguration
from stridedview._pack cimport Call
from stridedview._plan cimport Plan


# Queue a launch whose parameters are packed, in the current context: the stream is chosen
# and ordered. Returns 0, or another TRY result (see _launch.pyx).
cdef int launch_packed(LaunchConfiguration configuration, Plan plan, char* buffer,
                       Call* call, PyObject** args) except -1
