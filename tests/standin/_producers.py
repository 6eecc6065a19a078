"""Import the producer extension from the build folder."""

import functools
import importlib.util

from . import _build


@functools.cache
def module():
    """Return the extension module with the producer classes, built when needed."""
    spec = importlib.util.spec_from_file_location("standin_producer", _build.producer())
    extension = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(extension)
    return extension
