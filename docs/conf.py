"""Sphinx configuration; the version is read from the package without importing it."""

import re
from pathlib import Path

INIT = Path(__file__).parent.parent / "stridedview" / "__init__.py"

project = "stridedview"
author = "the stridedview authors"
copyright = "the stridedview authors"
release = re.search(r'__version__ = "(.+)"', INIT.read_text())[1]
version = release

extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
nitpicky = True

html_theme = "furo"
html_title = f"stridedview {release}"
