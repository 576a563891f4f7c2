"""The Go allocator of kube-scheduler as an oracle, and answers in a form in which two of them can be compared."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[1] / "oracle" / "allocator"


def ask(binary: Path, questions: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The oracle's answers, in the order of the questions."""
    text = "".join(json.dumps(question) + "\n" for question in questions)
    command = [str(binary), "-deadline", "2s"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def comparable(answer: dict[str, Any]) -> dict[str, Any]:
    """What must be equal: texts of errors and random share IDs need not be, that there is one must."""
    results = [_bare(result) for result in answer["results"]]
    for result in results:
        for device in result.get("devices", {}).get("results", []):
            if "shareID" in device and not device["shareID"].startswith("00000000-0000-4000-8000"):
                device["shareID"] = "drawn"
    return {"allocated": answer["allocated"], "results": results, "error": answer["error"] is not None}


def timed_out(answer: dict[str, Any]) -> bool:
    """Whether the oracle gave up: its answer is then one about its machine."""
    return answer["error"] is not None and "deadline" in answer["error"]


def _bare(value: Any) -> Any:
    """Without empty members: Go and Rust leave out different ones."""
    if isinstance(value, dict):
        bare = {key: item if key == "parameters" else _bare(item) for key, item in value.items()}
        return {key: item for key, item in bare.items() if item not in (None, "", [], {})}
    if isinstance(value, list):
        return [_bare(item) for item in value]
    return value
