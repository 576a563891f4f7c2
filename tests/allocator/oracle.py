"""The Go allocator of kube-scheduler as an oracle, and results in a comparable form."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[1] / "oracle" / "allocator"


def run(binary: Path, queries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run the oracle; return its results in the order of the queries."""
    text = "".join(json.dumps(query) + "\n" for query in queries)
    command = [str(binary), "-deadline", "2s"]
    completed = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in completed.stdout.splitlines()]


def comparable(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts that must be equal: error texts and random share IDs may differ, their presence may not."""
    results = [_without_empty(result) for result in answer["results"]]
    for result in results:
        for device in result.get("devices", {}).get("results", []):
            if "shareID" in device and not device["shareID"].startswith("00000000-0000-4000-8000"):
                device["shareID"] = "drawn"
    return {"allocated": answer["allocated"], "results": results, "error": answer["error"] is not None}


def timed_out(answer: dict[str, Any]) -> bool:
    """Return whether the oracle ran into its deadline: its result then depends on its machine."""
    return answer["error"] is not None and "deadline" in answer["error"]


def _without_empty(value: Any) -> Any:
    """Return the value without empty members: Go and Rust omit different ones."""
    if isinstance(value, dict):
        stripped = {key: item if key == "parameters" else _without_empty(item) for key, item in value.items()}
        return {key: item for key, item in stripped.items() if item not in (None, "", [], {})}
    if isinstance(value, list):
        return [_without_empty(item) for item in value]
    return value
