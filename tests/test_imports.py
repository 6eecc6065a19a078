"""Imports point one way, and importing stridedview loads nothing that costs."""

import ast
import graphlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "stridedview"

# From the bottom up. A module may import only from rows above its own; those that share
# a row know nothing of each other, except as `SAME_ROW` says.
ORDER = [
    {"_peers"},
    {
        "_locks",
        "_dlpack",
        "_driver",
        "_dynamo",
        "_geometry",
        "_intern",
        "_autoenable",
        "_torch_gate",
        "_kernels",
        "_scalars",
        "_autograd",
        "_op_schema",
    },
    {
        "_errors",
        "_dtype",
        "_axes",
        "_indexing",
        "_memo",
        "_block",
        "_op_kernels",
        "_managed_resource",
    },
    {"_layout", "_op_registry"},
    {"_source", "_managed", "_copyplan"},
    {"_view", "_ring"},
    {"_exchange"},
    {"_export", "_device_copy", "_record", "_variadic"},
    {"_torch", "_protocol"},
    {"_ingest"},
    {"_stream", "_pack"},
    {"_plan"},
    {"_configuration"},
    {"_launch", "_transfer", "_alloc", "_signature"},
    {"_prepared", "_stats"},
    {"_assign"},
    {"memory"},
    {"_sharing"},
    {"numba_cuda", "_simulator"},
    {"_explain", "_profile"},
    {"_switch"},
    {"_status", "_op_launch"},
    {"_demo", "_torch_op"},
    {"__main__"},
]
SAME_ROW = {("numba_cuda", "_simulator")}
# The package itself counts as the bottom: it loads its names only when they are asked for.
RANK = {name: rank for rank, names in enumerate(ORDER, start=1) for name in names}

FRAMEWORKS = {"numba", "numba_cuda", "torch", "cupy", "jax", "triton"}
# The status command imports it to see whether the hook of the environment worked.
MAY_IMPORT_NUMBA = {"numba_cuda", "_simulator", "_demo", "_status", "_switch"}

SOURCES = sorted(
    path
    for path in PACKAGE.iterdir()
    if path.suffix in (".py", ".pyx", ".pxd") and path.stem != "__init__"
)

# The package that patches Numba stands as one in ORDER.
PATCH = sorted((PACKAGE / "numba_cuda").glob("*.py"))

CYTHON_IMPORT = re.compile(
    r"^\s*(?:from\s+(?P<module>[\w.]+)\s+c?import\s+(?P<names>\([^)]*\)|[\w, .]*)"
    r"|c?import\s+(?P<plain>[\w., ]+))",
    re.MULTILINE,
)


def python_imports(text):
    """Return the modules that Python source imports, as dotted names.

    Imports under ``if TYPE_CHECKING`` are left out, and literal arguments of
    ``import_module`` are counted.
    """
    found = set()
    for node in ast.walk(_without_type_checking(ast.parse(text))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            prefix = "." * node.level + (node.module or "")
            found.add(prefix)
            found.update(f"{prefix.rstrip('.')}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args:
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            argument = node.args[0]
            if name in ("import_module", "__import__") and isinstance(
                argument, ast.Constant
            ):
                found.add(argument.value)
    return found


def _without_type_checking(tree):
    class Remover(ast.NodeTransformer):
        def visit_If(self, node):
            if getattr(node.test, "id", "") == "TYPE_CHECKING":
                return None
            return self.generic_visit(node)

    return Remover().visit(tree)


def cython_imports(text):
    """Return the modules that Cython source imports or cimports, as dotted names."""
    found = set()
    for match in CYTHON_IMPORT.finditer(text):
        if match["plain"]:
            found.update(
                name.split(" as ")[0].strip() for name in match["plain"].split(",")
            )
        else:
            found.add(match["module"])
            names = re.sub(r"#.*", "", match["names"]).strip("()")
            found.update(
                f"{match['module'].rstrip('.')}.{name.split(' as ')[0].strip()}"
                for name in names.split(",")
                if name.strip()
            )
    return found


def imports_of(path):
    text = path.read_text(encoding="utf-8")
    return python_imports(text) if path.suffix == ".py" else cython_imports(text)


def own_modules(imports):
    """Return which of our modules are among the dotted names."""
    names = set()
    for name in imports:
        head, _, rest = name.lstrip(".").partition(".")
        relative = name.startswith(".")
        if relative or head == "stridedview":
            first = head if relative else rest.split(".")[0]
            names.update({first} & RANK.keys())
    return names


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_source_when_it_imports_our_modules_then_only_lower_ones(path):
    assert path.stem in RANK, f"give {path.stem} its place in ORDER"
    higher = {
        name
        for name in own_modules(imports_of(path)) - {path.stem}
        if RANK[name] >= RANK[path.stem] and (path.stem, name) not in SAME_ROW
    }
    assert not higher, f"{path.name} imports {sorted(higher)}, which stand above it"


@pytest.mark.parametrize("path", PATCH, ids=lambda path: f"numba_cuda/{path.name}")
def test_patch_when_it_imports_our_modules_then_only_lower_ones(path):
    found = own_modules(imports_of(path)) - {"numba_cuda"}
    higher = {name for name in found if RANK[name] >= RANK["numba_cuda"]}
    assert not higher, f"{path.name} imports {sorted(higher)}, which stand above it"


def test_patch_when_its_modules_import_each_other_then_there_is_no_circle():
    stems = {path.stem for path in PATCH} - {"__init__"}
    prefix = "stridedview.numba_cuda."
    graph = {
        path.stem: {
            name.removeprefix(prefix).partition(".")[0]
            for name in imports_of(path)
            if name.startswith(prefix)
        }
        & stems
        for path in PATCH
    }
    assert any(graph.values())
    # Raises CycleError, which names them.
    assert [*graphlib.TopologicalSorter(graph).static_order()]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_source_when_it_imports_numba_then_it_is_one_that_may(path):
    packages = {name.partition(".")[0] for name in imports_of(path)}
    assert path.stem in MAY_IMPORT_NUMBA or not {"numba", "numba_cuda"} & packages


READERS = {
    "python import": (python_imports, "import stridedview._view\n", "_view"),
    "python from": (python_imports, "from stridedview import _view\n", "_view"),
    "python relative": (python_imports, "from ._view import StridedView\n", "_view"),
    "python relative package": (python_imports, "from . import _view\n", "_view"),
    "python late": (
        python_imports,
        "def f():\n    import_module('stridedview._view')\n",
        "_view",
    ),
    "cython cimport": (
        cython_imports,
        "from stridedview._view cimport StridedView\n",
        "_view",
    ),
    "cython package": (cython_imports, "from stridedview cimport _view as v\n", "_view"),
    "cython relative": (cython_imports, "from . cimport _view\n", "_view"),
    "cython plain": (cython_imports, "cimport stridedview._view\n", "_view"),
    "cython in a function": (
        cython_imports,
        "def f():\n    from ._view import x\n",
        "_view",
    ),
    "cython parentheses": (
        cython_imports,
        "from stridedview._view cimport (\n    a,\n    b,\n)\n",
        "_view",
    ),
    "cython package, parentheses": (
        cython_imports,
        "from stridedview import (\n    nothing,  # a reason\n    _view as v,\n)\n",
        "_view",
    ),
    "python package, parentheses": (
        python_imports,
        "from stridedview import (\n    nothing,\n    _view,\n)\n",
        "_view",
    ),
}


@pytest.mark.parametrize("case", READERS.values(), ids=READERS)
def test_reader_when_source_imports_then_it_is_seen(case):
    reader, text, expected = case
    assert own_modules(reader(text)) == {expected}


def test_import_when_done_then_no_framework_and_no_driver_is_loaded():
    code = (
        "import sys, stridedview\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules}))\n"
        "try:\n"
        "    print('libcuda' in open('/proc/self/maps').read())\n"
        "except FileNotFoundError:\n"
        "    print(False)\n"
    )
    # -S: another package's .pth file may import what it likes, and is not ours to judge.
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    modules, has_driver = map(ast.literal_eval, done.stdout.splitlines())
    assert not FRAMEWORKS & set(modules)
    assert has_driver is False


def test_launch_error_when_asked_for_then_no_framework_is_loaded():
    code = (
        "import sys, stridedview\n"
        "from stridedview import DriverError, LaunchError\n"
        "assert issubclass(LaunchError, DriverError)\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert not FRAMEWORKS & set(ast.literal_eval(done.stdout))


def test_public_names_when_listed_then_each_is_there():
    import stridedview

    listed = {name for name in dir(stridedview) if not name.startswith("__")}
    assert listed == set(stridedview.__all__) - {"__version__"}
    assert "__version__" in dir(stridedview)
    for name in stridedview.__all__:
        assert getattr(stridedview, name) is not None


def test_attribute_when_unknown_then_it_raises_attribute_error():
    import stridedview

    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        stridedview.nonsense  # noqa: B018
