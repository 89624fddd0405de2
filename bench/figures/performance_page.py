"""`docs/reference/performance.md`: each benchmark's latest figures, between two marks of its own.

In: a benchmark's name and its tables. Out: the page with that block replaced, and nothing else.
"""

from bench.peers.servers.flambeau_peer import ROOT

PAGE = ROOT / "docs/reference/performance.md"


def write_block(name: str, block: str) -> None:
    """Writes a benchmark's tables into the page."""
    text = PAGE.read_text() if PAGE.exists() else ""
    PAGE.write_text(with_block(text, name, block))
    print(f"wrote {PAGE}")


def with_block(text: str, name: str, block: str) -> str:
    """Replaces the block between its marks; appends both to a text without the marks."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        before, after = (text.rstrip() + "\n\n" if text.strip() else ""), "\n"
    return f"{before}{begin}\n{block}\n{end}{after}"
