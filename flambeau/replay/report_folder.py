"""The folder of a replay's reports, and the journal by which an interrupted replay goes on.

`journal.jsonl` has the settings of the replay in its first line, then a `Result` in each.
`report.json` and `report.md` are written when the replay ends, however it does.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError

from flambeau.replay.errors import ReportFolderError
from flambeau.replay.records import Result
from flambeau.replay.tally import Tally

JOURNAL, REPORT, PAGE = "journal.jsonl", "report.json", "report.md"
MAX_LINE_BYTES = 2**20
"""Largest line of a journal: a result with its first differences."""


class ReportFolder:
    """The reports of one replay.

    Args:
        path: the folder; made if it is not there.
        settings: what decides about results: servers, requests, rules.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path = path
        self._journal: IO[bytes]
        self._settings = json.loads(json.dumps(settings))

    @contextlib.contextmanager
    def opened(self, resume: bool | None) -> Iterator[Tally]:
        """Opens the journal until the block ends. Yields what is in it, if it is resumed.

        Args:
            resume: True to continue an interrupted replay, False to start again, None to start
                only if that loses no journal of an interrupted replay.

        Raises:
            ReportFolderError: there is nothing to continue, or another replay; or, with None,
                something.
            OSError: the folder cannot be written.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        path = self.path / JOURNAL
        if resume is None and path.exists() and not self._is_finished():
            raise ReportFolderError(
                f"'{self.path}' has an interrupted replay; continue it with --resume, or give "
                "--restart or another --report-dir"
            )
        tally = Tally()
        end = self._read(path, tally) if resume else 0
        (self.path / REPORT).unlink(missing_ok=True)
        with path.open("r+b" if resume else "wb") as self._journal:
            self._journal.seek(end)
            self._journal.truncate()
            if not resume:
                self._write(json.dumps(self._settings).encode())
            yield tally

    def add(self, result: Result) -> None:
        """Writes a result to the open journal."""
        self._write(result.model_dump_json().encode())

    def write(self, facts: dict[str, Any], page: str) -> None:
        """Writes the reports.

        Args:
            facts: the report, as JSON.
            page: the report, as Markdown.
        """
        _replace(self.path / PAGE, page)
        _replace(self.path / REPORT, json.dumps(facts, indent=1) + "\n")

    def _write(self, line: bytes) -> None:
        self._journal.write(line + b"\n")
        self._journal.flush()

    def _is_finished(self) -> bool:
        try:
            return bool(json.loads((self.path / REPORT).read_bytes())["finished"])
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def _read(self, journal: Path, tally: Tally) -> int:
        """Adds the results of a journal. Returns the bytes of its whole lines."""
        if not journal.exists():
            raise ReportFolderError(
                f"'{self.path}' has no {JOURNAL} to continue; leave out --resume"
            )
        with journal.open("rb") as file:
            head = file.readline(MAX_LINE_BYTES)
            self._check_settings(head)
            end = len(head)
            while (line := file.readline(MAX_LINE_BYTES)).endswith(b"\n"):
                try:
                    result = Result.model_validate_json(line)
                except ValidationError as error:
                    raise ReportFolderError(
                        f"'{journal}' is damaged behind byte {end}; give --restart"
                    ) from error
                end += len(line)
                if result.outcome != "not compared":  # these are tried again
                    tally.add(result)
        return end

    def _check_settings(self, head: bytes) -> None:
        try:
            before = json.loads(head)
            changed = [
                name for name, value in self._settings.items() if before.get(name, value) != value
            ]
        except (ValueError, AttributeError) as error:
            raise ReportFolderError(
                f"'{self.path / JOURNAL}' is no journal of a replay; give --restart"
            ) from error
        if changed or before.keys() != self._settings.keys():
            raise ReportFolderError(
                f"'{self.path}' has a replay with other settings ({', '.join(changed)}); repeat "
                "those, or give --restart or another --report-dir"
            )


def _replace(path: Path, text: str) -> None:
    """Writes a file whole, or leaves the one before."""
    staged = path.with_name(f".{path.name}.new")
    staged.write_text(text)
    os.replace(staged, path)
