"""A sample of the campaign with API server faults: the whole campaign is `make faults-server`."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from faults.server import FAULTS, BrokenPromiseError, rehearse, run


@pytest.fixture(scope="module")
def requests() -> list[str]:
    with tempfile.TemporaryDirectory(prefix="dra-") as folder:  # short: sockets of a kubelet are created below it
        return rehearse(Path(folder))


@pytest.mark.parametrize(
    ("verb", "path", "fault"),
    [
        ("GET", "resourceslices", "truncated"),
        ("GET", "resourceclaims", "reset"),
        ("POST", "resourceslices", "reset after it was done"),
        ("PUT", "resourceslices", "409"),
        ("PUT", "resourceslices", "503 three times"),
    ],
)
def test_a_failing_request_breaks_no_guarantee(
    requests: list[str], short_path: Path, verb: str, path: str, fault: str
) -> None:
    points = [number for number, one in enumerate(requests) if one.startswith(f"{verb} ") and path in one]
    assert points, f"a case has no {verb} of {path}: {sorted(set(requests))}"
    try:
        run(points[-1], fault, short_path)
    except BrokenPromiseError as broken:
        log = (short_path / "log").read_text()
        pytest.fail(f"--point {points[-1]} --fault '{fault}': {broken}\n{log}")


def test_every_kind_of_server_failure_has_a_fault() -> None:
    faults = [make() for make in FAULTS.values()]
    assert {fault.action for fault in faults} == {
        "answer",
        "reset",
        "hang",
        "reset-after",
        "late",
        "truncate",
        "stale",
    }
    assert {fault.status for fault in faults if fault.action == "answer"} == {200, 409, 410, 429, 500, 503}
