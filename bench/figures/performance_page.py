"""Pages of the documentation with each benchmark's latest figures, between two marks of its own.

In: a benchmark's name and its tables. Out: the page with that block replaced, and nothing else.
"""

from bench.peers.servers.flambeau_peer import ROOT

PAGE = ROOT / "docs/reference/performance.md"
PYTHON_PAGE = ROOT / "docs/reference/performance-python.md"
PROCESSES_PAGE = ROOT / "docs/reference/performance-processes.md"
LIMITS_PAGE = ROOT / "docs/reference/performance-limits.md"
FRONT_PAGE = ROOT / "docs/reference/performance-front.md"
PEERS_PAGE = ROOT / "docs/reference/performance-peers.md"
PINNED_PAGE = ROOT / "docs/reference/performance-pinned.md"
TORCHSERVE_PAGE = ROOT / "docs/reference/performance-torchserve.md"
ROLLOUTS_PAGE = ROOT / "docs/reference/rollouts-evidence.md"
GPU_PAGE = ROOT / "docs/reference/performance-gpu.md"
PAGES = {
    "gpu": GPU_PAGE, "peers": PEERS_PAGE, "limits": LIMITS_PAGE, "front": FRONT_PAGE,
    "torchserve": TORCHSERVE_PAGE, "rollouts": ROLLOUTS_PAGE, "rollout-cost": ROLLOUTS_PAGE,
    "publish": PYTHON_PAGE, "python": PYTHON_PAGE,
    "copies": PROCESSES_PAGE, "split": PROCESSES_PAGE, "cores": PROCESSES_PAGE,
    "soak-processes": PROCESSES_PAGE,
}  # fmt: skip
"""Pages of benchmarks that are not on `PAGE`, by name; pinned figures are on `PINNED_PAGE`."""


def write_block(name: str, block: str) -> None:
    """Writes a benchmark's tables into its page."""
    page = PINNED_PAGE if name.endswith("-pinned") else PAGES.get(name, PAGE)
    text = page.read_text() if page.exists() else ""
    page.write_text(with_block(text, name, block))
    print(f"wrote {page}")


def with_block(text: str, name: str, block: str) -> str:
    """Replaces the block between its marks; appends both to a text without the marks."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        before, after = (text.rstrip() + "\n\n" if text.strip() else ""), "\n"
    return f"{before}{begin}\n{block}\n{end}{after}"
