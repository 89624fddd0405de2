"""`make mutants`: changes a line of the sources, and looks whether a test notices.

A seeded sample of changes over `services`, `model_store` and `training`; each runs the unit and
contract tests that run its line. What has been tried is kept in `var/mutants`, so that an
interrupted run goes on where it was.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.covering import Covering, measure
from tests.mutants.line_recorder import PACKAGES
from tests.mutants.mutations import Mutation, mutations

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "var" / "mutants"
MAX_TESTS = 300
"""Limit on the tests of a line; the nearest are selected. Some lines are run by thousands."""
TIMEOUT_S = 180
"""A change that makes a loop endless is noticed, too."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One change, and what became of it.

    Attributes:
        file, line: where it is.
        what: the change in words.
        outcome: `killed`, `survived`, or `not run` where no test runs anything of its folder.
    """

    file: str
    line: int
    what: str
    outcome: str


def main() -> int:
    """Tries the sample, and prints the survivors. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="of changes")
    parser.add_argument("--seed", type=int, default=26)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--least", type=float, default=0.92, help="part that must be noticed")
    given = parser.parse_args()
    sources = _sources()
    kept = KEPT / hashlib.sha256("".join(sources.values()).encode()).hexdigest()[:16]
    kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies = [Path(folder) / str(number) for number in range(given.workers)]
        for copy in copies:
            _copy_to(copy)
        if not (kept / "root").exists():
            measure(copies[0], kept / "lines", given.workers + 1)
            (kept / "root").write_text(str(copies[0]))
        covering = Covering(kept / "lines", Path((kept / "root").read_text()))
        for test in covering.failed:
            print(f"fails without a change, and is left out: {test}")
        trials = _try(_sample(sources, given.seed, given.count), covering, copies, sources, kept)
    killed = sum(trial.outcome == "killed" for trial in trials)
    for trial in sorted(trials, key=lambda trial: (trial.file, trial.line)):
        if trial.outcome != "killed":
            print(f"{trial.outcome:9} {trial.file}:{trial.line}: {trial.what}")
    print(f"seed {given.seed}: {killed} of {len(trials)} changes were noticed")
    return 0 if killed >= given.least * len(trials) else 1


def _sources() -> dict[str, str]:
    names = subprocess.run(
        ["git", "ls-files", *(f"{package}/**.py" for package in PACKAGES)],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    return {name: (ROOT / name).read_text() for name in names}


def _copy_to(copy: Path) -> None:
    """The files of this repository, as they are now."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    for environment in (".venv", ".venv-clients"):
        if (ROOT / environment).exists():
            (copy / environment).symlink_to(ROOT / environment)
    # Some tests ask git for the files of the repository.
    subprocess.run(["git", "init", "-q"], cwd=copy, check=True)
    subprocess.run(["git", "add", "."], cwd=copy, check=True)


def _sample(sources: dict[str, str], seed: int, count: int) -> list[tuple[str, Mutation]]:
    found = [(name, change) for name, text in sources.items() for change in mutations(text)]
    return random.Random(seed).sample(found, min(count, len(found)))


def _try(
    sample: Sequence[tuple[str, Mutation]],
    covering: Covering,
    copies: Sequence[Path],
    sources: dict[str, str],
    kept: Path,
) -> list[Trial]:
    """Tries each change that has not been tried, as many at once as there are copies."""
    free: SimpleQueue[Path] = SimpleQueue()
    for copy in copies:
        free.put(copy)

    def one(name: str, change: Mutation) -> Trial:
        key = hashlib.sha256(f"{name} {change}".encode()).hexdigest()[:24]
        file = kept / f"{key}.json"
        if file.exists():
            return Trial(**json.loads(file.read_text()))
        copy = free.get()
        try:
            outcome = _outcome(copy, name, change, sources[name], covering)
        finally:
            free.put(copy)
        trial = Trial(name, change.line, change.what, outcome)
        file.write_text(json.dumps(asdict(trial)))
        print(f"{outcome:9} {name}:{change.line}: {change.what}", flush=True)
        return trial

    with ThreadPoolExecutor(len(copies)) as threads:
        return list(threads.map(one, *zip(*sample, strict=True)))


def _outcome(copy: Path, name: str, change: Mutation, source: str, covering: Covering) -> str:
    tests = covering.tests(name, change.line)
    if not tests:
        return "not run"
    stem = Path(name).stem
    tests.sort(key=lambda test: stem not in test.partition("::")[0])
    listed = copy / "tests-of-mutant.txt"
    listed.write_text("\n".join(tests[:MAX_TESTS]))
    (copy / name).write_text(change.applied(source))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", f"@{listed}"],
            cwd=copy, capture_output=True, timeout=TIMEOUT_S, check=False,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(copy)},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "killed"
    finally:
        (copy / name).write_text(source)
    return "killed" if done.returncode else "survived"


if __name__ == "__main__":
    sys.exit(main())
