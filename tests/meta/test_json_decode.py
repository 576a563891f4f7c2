"""JSON from outside the process is decoded in one place, which has one error for every kind of damage."""

from __future__ import annotations

import re
from pathlib import Path

PYTHON = Path(__file__).resolve().parents[2] / "python"
OWN_DATA = {
    "allocator.py": "the response of the Rust part",
    "cluster.py": "the response of the Rust part",
    "agent/config_file.py": "the response of the Rust part",
    "explain/__init__.py": "the response of the Rust part",
    "manifests/load.py": "the response of the Rust part; else it only refuses half a character",
    "prepare/ledger.py": "the response of the Rust part",
    "slices/current.py": "the response of the Rust part",
    "slices/desired.py": "the response of the Rust part, and slices that it made",
    "cli/output.py": "encoded in the same line",
    "prepare/setup_runner.py": "encoded in the same line",
    "inventory/model.py": "encoded in the same line",
    "publish/plan.py": "slices that the API server returned and the client decoded",
    "publish/slice_store.py": "slices that the API server returned and the client decoded",
    "device_setup/rtnetlink.py": "the child's request, from the agent",
}
"""Modules that decode what this process or its parent has encoded, and why."""


def test_data_from_elsewhere_is_decoded_in_one_place() -> None:
    found = {
        str(path.relative_to(PYTHON)).removeprefix("dra_agent/")
        for path in PYTHON.rglob("*.py")
        if re.search(r"msgspec\.json\.decode\(", path.read_text())
    }
    found = {name for name in found if not name.startswith("dra_simulate/")} - {"json_decode.py"}
    assert found == set(OWN_DATA)
