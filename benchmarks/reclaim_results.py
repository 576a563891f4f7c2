"""Stores the rounds of a run in a file when they are complete, so that results survive an interruption.

One JSON object per line: first the settings, then the rounds. A run with the same settings continues at the end of the
file. Next to the file is a summary with percentiles and failures, for programs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from reclaim_rounds import Round
from reclaim_table import lines_of


class Results:
    """The results by part, in the order of the rounds."""

    def __init__(self, path: Path, settings: Mapping[str, Any], *, restart: bool) -> None:
        """Continue the file or create it; raise SystemExit if it has other settings."""
        self.path = path
        self.rounds: dict[str, list[Round]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        if restart or not path.exists():
            path.write_text(json.dumps({"settings": settings}) + "\n")
            return
        text = path.read_text()
        # A run that was killed during a write leaves an incomplete line: that round does not count.
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            path.write_text(whole)
        first, *others = [json.loads(line) for line in whole.splitlines()] or [{}]
        if first.get("settings") != settings:
            raise SystemExit(
                f"{path} has the settings {first.get('settings')}, not {settings}: name another file, or --restart"
            )
        for one in others:
            self._keep(one.pop("part"), Round(**one))

    def of(self, part: str) -> list[Round]:
        """Return the rounds of a part."""
        return self.rounds.get(part, [])

    def add(self, part: str, done: Round) -> None:
        """Store a round; it is on disk when this returns."""
        with self.path.open("a") as file:
            file.write(json.dumps({"part": part, **asdict(done)}) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._keep(part, done)
        self._summarize()

    def _keep(self, part: str, done: Round) -> None:
        self.rounds.setdefault(part, []).append(done)

    def _summarize(self) -> None:
        found = {part: {line.name: line.cells() for line in lines_of(some)} for part, some in self.rounds.items()}
        counts = {
            part: {who: sum(1 for one in some if one.who == who) for who in ("agent", "drain")}
            for part, some in self.rounds.items()
        }
        body = json.dumps({"rounds": counts, "seconds": found}, indent=1)
        temporary = self.summary.with_suffix(".new")
        temporary.write_text(body + "\n")
        temporary.rename(self.summary)

    @property
    def summary(self) -> Path:
        """Return the path of the summary."""
        return self.path.with_suffix(".summary.json")
