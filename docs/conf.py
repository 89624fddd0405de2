"""Configuration of Sphinx for `make docs-site`; docs/adr/0047 has the reasons.

In: the Markdown of the repository, whose root is the source folder, so that a link leads to the
same file here and in a checkout. Out: a site that loads nothing from elsewhere. The lists of links
in `docs/index.md` are its navigation.
"""

import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

project = "flambeau"
copyright = "the authors of flambeau"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = ["docs/**.md", "*.md", "deploy/README.md", "examples/README.md", "k8s/README.md"]
exclude_patterns = [".*", "build", "dist", "var"]

html_theme = "furo"
html_title = "flambeau"
html_extra_path = ["site/index.html"]
html_copy_source = False
html_show_sourcelink = False

myst_heading_anchors = 4
myst_enable_extensions = ["attrs_block"]
# A name in backticks is code, as in the Markdown that the docstrings are written in.
default_role = "code"
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_mock_imports = ["torch"]

_SECTION = re.compile(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+\.md)\)")
_ANCHOR = re.compile(r'^<a id="(\w+)"></a>$', re.MULTILINE)
_LINK_TO_ANCHOR = re.compile(r"\]\(#(\w+)\)")
_EVERY_PAGE_OF = {"Runbooks": ["runbooks/*"], "Decisions": ["adr/*"]}
"""Folders of `docs/` that a section of the start page contains whole."""


def navigation(app: Sphinx, page: str, source: list[str]) -> None:
    """Gives a page the tables of contents, and the form of anchors, that Sphinx needs.

    Args:
        app: unused.
        page: path of the page, without its suffix.
        source: its text, replaced in place.
    """
    if page == root_doc:
        source[0] += "".join(
            _contents(_EVERY_PAGE_OF.get(name, _entries(text)), f":caption: {name}")
            for name, text in _SECTION.findall(source[0])
        )
    elif page == "docs/reference/recipe":
        source[0] = _ANCHOR.sub(lambda found: f"(part-{found[1].lower()})=", source[0])
        source[0] = _LINK_TO_ANCHOR.sub(lambda found: f"](#part-{found[1].lower()})", source[0])


def _entries(section: str) -> list[str]:
    return [f"{title} <{path}>" for title, path in _LINK.findall(section)]


def _contents(pages: list[str], options: str) -> str:
    lines = "\n".join(pages)
    return f"\n```{{toctree}}\n:hidden:\n:glob:\n:maxdepth: 1\n{options}\n\n{lines}\n```\n"


def returns_in_words(
    app: Sphinx, kind: str, name: str, item: object, options: object, lines: list[str]
) -> None:
    """Keeps the first words of `Returns:` from being read as a type, as napoleon would.

    Args:
        app: unused.
        kind: unused.
        name: unused.
        item: unused.
        options: unused.
        lines: the docstring, changed in place.
    """
    for above, (place, line) in zip(lines, list(enumerate(lines))[1:], strict=False):
        if above.strip() in ("Returns:", "Yields:"):
            lines[place] = f"{line[: len(line) - len(line.lstrip())]}: {line.lstrip()}"


def setup(app: Sphinx) -> None:
    """Registers what changes pages and docstrings before they are read.

    Args:
        app: the application that builds the site.
    """
    app.connect("source-read", navigation)
    app.connect("autodoc-process-docstring", returns_in_words, priority=100)
