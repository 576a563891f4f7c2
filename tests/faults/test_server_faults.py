"""A sample of the campaign in which the API server fails: the whole of it is `make faults-server`."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from faults.server import FAULTS, BrokenPromiseError, rehearse, run


@pytest.fixture(scope="module")
def requests() -> list[str]:
    with tempfile.TemporaryDirectory(prefix="dra-") as folder:  # short: sockets of a kubelet are made below it
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
def test_a_request_that_fails_breaks_no_promise(
    requests: list[str], short_path: Path, verb: str, path: str, fault: str
) -> None:
    points = [number for number, one in enumerate(requests) if one.startswith(f"{verb} ") and path in one]
    assert points, f"a case has no {verb} of {path}: {sorted(set(requests))}"
    try:
        run(points[-1], fault, short_path)
    except BrokenPromiseError as broken:
        log = (short_path / "log").read_text()
        pytest.fail(f"--point {points[-1]} --fault '{fault}': {broken}\n{log}")


def test_there_is_a_fault_for_every_way_in_which_a_server_fails() -> None:
    actions = {make().action for make in FAULTS.values()}
    assert actions == {"answer", "reset", "hang", "reset-after", "late", "truncate", "stale"}
