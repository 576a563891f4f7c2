"""Every query of NVML that the agent relies on, in each version and with less privilege, and a recording to keep."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import dra_simulate
from dra_agent.doctor.record import record
from dra_agent.host import Host
from dra_agent.inventory.nvidia.nvml_client import NoPermissionError, NvmlClient
from dra_agent.inventory.nvidia.profiles import read_profiles
from dra_agent.inventory.settings import InventorySettings
from dra_agent.recording import NVML, load_manifest
from dra_simulate import nvml as fake
from recordings.compare import differences
from recordings.conclusions import anonymous, conclusions
from recordings.replay import replay

from . import privileges
from .conftest import REAL, TARGET
from .journal import Journal
from .test_driver import handles

NO_PERMISSION = 4
"""Of nvmlReturn_t."""
_PROFILE = "nvmlDeviceGetGpuInstanceProfileInfo"
Responses = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def responses(host: Host, addresses: list[str], nvml: NvmlClient, journal: Journal) -> Responses:
    """The survey by privilege."""
    found = {}
    for name, prefix in privileges.modes(host).items():
        with privileges.permitted(host, name):
            found[name] = privileges.run(prefix, host, addresses)
    for name, survey in found.items():
        journal.add(f"NVML as {name}", [{**one, "value": _short(one["value"])} for one in survey])
    names = list(found)
    first = {(one["gpu"], one["call"]): one["code"] for one in found[names[0]]}
    rows = [
        {"GPU": one["gpu"], "call": one["call"], names[0]: first.get((one["gpu"], one["call"])), name: one["code"]}
        for name in names[1:]
        for one in found[name]
        if one["code"] != first.get((one["gpu"], one["call"])) and one["call"] != "CAP_SYS_ADMIN"
    ]
    journal.add("Return codes that differ by privilege", rows)
    return found


def test_the_second_survey_runs_without_the_capability(responses: Responses) -> None:
    held = {name: survey[-1]["code"] for name, survey in responses.items()}
    if privileges.WITHOUT not in held or "root" not in held:
        pytest.skip("needs root and setpriv (util-linux) to compare privileges")
    assert held[privileges.WITHOUT] == 0


def test_the_fake_refuses_calls_without_the_capability(host: Host, responses: Responses) -> None:
    if REAL:
        pytest.skip("a real driver decides itself; the report lists the return codes that differ")
    lists = fake.read(host.sysfs.parent / "lib").access.admin
    assert len(responses) == 2
    for name, survey in responses.items():
        codes = {one["code"] for one in survey if "PossiblePlacements" in one["call"]}
        assert codes <= {0 if lists and name != privileges.WITHOUT else NO_PERMISSION}, name


def test_every_call_responds_within_the_shipped_deadline(responses: Responses, journal: Journal) -> None:
    limit = InventorySettings().nvml_timeout * 1000
    slow = sorted((one for survey in responses.values() for one in survey), key=lambda one: -one["ms"])
    journal.add("Slowest calls", [{"GPU": one["gpu"], "call": one["call"], "ms": one["ms"]} for one in slow[:10]])
    assert [one for one in slow if one["ms"] >= limit or "not in time" in one["error"]] == []


def test_both_versions_of_a_profile_agree(responses: Responses, addresses: list[str]) -> None:
    survey = {(one["gpu"], one["call"]): one for one in next(iter(responses.values()))}
    different = []
    for address in addresses:
        for number in range(18):
            first, second = (survey[address, f"{_PROFILE}({number}, {version})"] for version in (1, 2))
            if first["code"] != second["code"]:
                different.append(f"{address}: profile {number}: version 1 {first['code']}, version 2 {second['code']}")
            elif first["code"] == 0:
                same = {name: value for name, value in second["value"].items() if name not in ("version", "name")}
                if same != {name: value for name, value in first["value"].items() if name in same}:
                    different.append(f"{address}: profile {number}: {first['value']} and {second['value']}")
    assert different == []


def test_the_agent_knows_every_profile_that_has_a_placement(
    nvml: NvmlClient, responses: Responses, addresses: list[str]
) -> None:
    survey = next(iter(responses.values()))
    for address, handle in handles(nvml).items():
        if address not in addresses:
            continue
        placed = {
            int(one["call"].partition("(")[2].rstrip(")")): [tuple(place) for place in one["value"]]
            for one in survey
            if one["gpu"] == address and "PossiblePlacements" in one["call"] and one["code"] == 0 and one["value"]
        }
        try:
            profiles = read_profiles(nvml, handle, address)
        except NoPermissionError:
            refused = [one for one in survey if one["gpu"] == address and one["code"] == NO_PERMISSION]
            assert any("PossiblePlacements" in one["call"] for one in refused) and not placed, address
            continue
        found = {profile.id: [(place.start, place.size) for place in profile.placements] for profile in profiles}
        assert found == placed, address


def test_the_recording_is_the_same_host(host: Host, journal: Journal, tmp_path: Path) -> None:
    folder = (TARGET or tmp_path) / "recording"
    shutil.rmtree(folder, ignore_errors=True)
    manifest = record(host, folder)  # stops the library of this process, which starts again when it is needed
    journal.add("Recording", {"directory": str(folder), "files": [file.path for file in manifest.files]})
    journal.add("Not recorded", [f"{one.where}: {one.reason}" for one in manifest.omitted])
    assert load_manifest(folder) == manifest and (folder / NVML).exists()
    again = dra_simulate.build(str(folder), tmp_path / "again")
    fake = anonymous(conclusions(again))
    with replay(folder) as misses:
        strict = anonymous(conclusions(again))
    found = differences(folder, again)
    journal.add("Calls that the fake library answers differently", found)
    assert misses == [], "calls that the agent makes and the recording does not have"
    assert found == []
    assert strict["devices"] == fake["devices"]


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
