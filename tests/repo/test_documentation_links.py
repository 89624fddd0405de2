"""The navigation and the links of the documentation, checked without the tool that builds the site.

Anchors are those that GitHub and MyST derive from headings.
"""

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
INDEX = DOCS / "index.md"
PAGES = sorted(DOCS.rglob("*.md"))
DOCUMENTS = [
    *PAGES,
    *ROOT.glob("*.md"),
    *(ROOT / f"{name}/README.md" for name in ("deploy", "examples", "k8s")),
]
IN_FOLDERS = {DOCS / "adr", DOCS / "runbooks"}
"""Folders whose pages docs/conf.py adds to the navigation without being told of each."""
MAX_PAGE_LINES = 450
GENERATED = {DOCS / "reference/recipe.md"}
FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def prose(path: Path) -> str:
    return FENCE.sub("", path.read_text())


def links(path: Path) -> list[tuple[Path, str]]:
    """Returns the file and the anchor of each link that stays in the repository."""
    found = []
    for link in LINK.findall(re.sub(r"`[^`\n]+`", "", prose(path))):
        if "://" not in link:
            target, _, anchor = link.partition("#")
            found.append(((path.parent / target).resolve() if target else path, anchor))
    return found


def anchors(path: Path) -> set[str]:
    text = prose(path)
    names = re.findall(r'<a id="(\w+)">', text)
    times: Counter[str] = Counter()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
        names.append(f"{slug}-{times[slug]}" if times[slug] else slug)
        times[slug] += 1
    return set(names)


def test_every_page_is_in_the_navigation_once() -> None:
    listed = Counter(target for target, anchor in links(INDEX) if not anchor)
    own = {page for page in PAGES if page.parent not in IN_FOLDERS} - {INDEX}
    assert sorted(map(relative, own - listed.keys())) == [], "link them in docs/index.md"
    twice = [relative(page) for page, times in listed.items() if times > 1 and page in own]
    assert twice == []


def test_the_documents_outside_docs_are_in_the_navigation() -> None:
    listed = {target for target, _ in links(INDEX)}
    assert [relative(path) for path in DOCUMENTS if path not in listed | {*PAGES}] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=relative)
def test_every_link_and_anchor_resolves(path: Path) -> None:
    for target, anchor in links(path):
        assert target.is_file(), f"{relative(path)} links to {target}, which is no file"
        if anchor:
            assert anchor in anchors(target), f"{relative(path)}: {target.name}#{anchor}"


def test_the_site_contains_every_page_that_a_link_leads_to() -> None:
    """Other files would be downloads; there is no repository on the web to link to."""
    linked = {target for path in DOCUMENTS for target, _ in links(path)}
    others = {target for target in linked if target not in DOCUMENTS}
    assert {path.suffix for path in others} <= {".svg"}


@pytest.mark.parametrize("path", [page for page in PAGES if page not in GENERATED], ids=relative)
def test_a_page_has_one_subject(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_PAGE_LINES, "split it by subject"
