"""The documentation reads the same raw and rendered, and its links lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
TEXTS = [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def prose(path):
    """Return the text of a page without its blocks of code and directives."""
    return re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)


def anchors(path):
    """Return the anchors of a page's headings, as GitHub and MyST make them."""
    headings = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_page_when_read_raw_then_it_has_no_roles_or_labels(path):
    text = prose(path)
    assert not re.findall(r"\{\w+\}`", text)
    assert not re.findall(r"^\([\w-]+\)=$", text, re.MULTILINE)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_page_when_it_links_then_the_target_is_there(path):
    for target in LINK.findall(prose(path)):
        if re.match(r"\w+:", target):
            continue
        file, _, anchor = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), target


def test_index_when_read_raw_then_it_links_to_every_page():
    linked = set(LINK.findall(prose(ROOT / "docs" / "index.md")))
    assert {path.name for path in PAGES} - {"index.md"} <= linked


def test_quickstart_when_read_then_it_has_every_option_and_variable():
    import inspect

    import stridedview
    from stridedview import _status

    text = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    for name in [*inspect.signature(stridedview.enable).parameters, *_status.VARIABLES]:
        assert f"`{name}=" in text, name


def test_quickstart_when_read_then_it_has_every_error_class():
    import stridedview

    text = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    for name in stridedview.__all__:
        value = getattr(stridedview, name)
        if isinstance(value, type) and issubclass(value, Exception):
            assert f"`{name}`" in text, name
