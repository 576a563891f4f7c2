"""Claims with paths, line breaks and huge structures in names and settings (attacker A).

The API server refuses most of these names. The agent does not rely on that: its socket has other clients, too.
"""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest

from dra_agent.cdi.registry import applied_edits
from dra_agent.errors import AgentError, PermanentError
from prepare.simulated_node import SimulatedNode, claim, partition, result

NAMES = (
    "../../../tmp/x",
    "..",
    "",
    "/etc/passwd",
    "a/b",
    "a\0b",
    "a\nLD_PRELOAD=/tmp/x.so",
    "-rf",
    "a" * 300,
)
PLACES = ("uid", "name", "namespace", "request", "share", "device")
VARIABLE = re.compile(r"DRA_AGENT_[A-Z0-9_]+=[^\x00-\x1f\x7f]*")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A directory with empty surroundings: `tmp_path.parent` has the files of earlier tests."""
    return tmp_path / "around" / "machine"


@pytest.fixture(params=[True, None], ids=["metadata", "plain"])
def node(machine: Path, request: pytest.FixtureRequest) -> SimulatedNode:
    return SimulatedNode(machine / "host", metadata=request.param)


def hostile(place: str, name: str) -> dict[str, Any]:
    claim_ = claim("uid-1", result("gpu-0"))
    result_ = claim_["status"]["allocation"]["devices"]["results"][0]
    if place in ("uid", "name", "namespace"):
        claim_["metadata"][place] = name
    elif place == "request":
        result_["request"] = name
        claim_["spec"]["devices"]["requests"][0]["name"] = name
    elif place == "share":
        result_.update(shareID=name, consumedCapacity={"memory": "4Gi"})
    else:
        result_["device"] = name
    return claim_


def files(root: Path) -> set[Path]:
    return {path.relative_to(root) for path in root.rglob("*")}


@pytest.mark.parametrize("name", NAMES, ids=ascii)
@pytest.mark.parametrize("place", PLACES)
def test_no_name_of_a_claim_becomes_a_path_or_a_variable(
    node: SimulatedNode, machine: Path, tmp_path: Path, place: str, name: str
) -> None:
    node.preparer.prepare(claim("innocent", "gpu-7"))
    before, outside = files(machine), files(tmp_path)
    claim_ = hostile(place, name)
    try:
        prepared_results = node.preparer.prepare(claim_)
    except AgentError as error:
        assert str(error)
    else:
        registry = node.registry()
        for prepared in prepared_results:
            for variable in applied_edits(registry, prepared.cdi_device_ids).env:
                assert VARIABLE.fullmatch(variable), variable
    created = files(machine) - before
    allowed = (node.cdi.relative_to(machine), node.metadata_dir.relative_to(machine))
    assert all(
        any(path.is_relative_to(folder) for folder in allowed) or path in allowed[1].parents for path in created
    ), created
    assert files(tmp_path) - outside == {machine.relative_to(tmp_path) / path for path in created}
    try:
        node.preparer.unprepare(claim_["metadata"]["uid"])
    except AgentError as error:
        assert str(error)
    remaining = {path for path in files(machine) - before if (machine / path).is_file()}
    assert not remaining, f"remaining after the release: {remaining}"
    assert node.usable("innocent") and node.ledger.get("innocent") is not None


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"size": value}
    return value


@pytest.mark.parametrize(
    "more",
    [
        {"extra": "x" * (1 << 20)},
        {f"field-{number}": number for number in range(20_000)},
        {"size": deep(900)},
        {"size": [[]] * 10_000},
        {"size": 1 << 4096},
        {"size": "2\nfail: true"},
        {"size": {"$ref": "/etc/passwd"}},
    ],
    ids=["long", "wide", "deep", "many", "big number", "lines", "reference"],
)
def test_huge_or_deep_parameters_get_a_short_error(node: SimulatedNode, more: dict[str, Any]) -> None:
    with pytest.raises(PermanentError) as refused:
        node.preparer.prepare(claim("a", "gpu-0", config=[partition(**{"size": 1, **more})]))
    message = str(refused.value)
    assert len(message) < 4096 and "\n" not in message, message[:200]
    assert node.hardware == {} and node.ledger.entries() == [] and node.specs.claims() == {}


@pytest.mark.parametrize("source", ["FromClaim", "FromClass"])
def test_admin_access_has_no_device_setup(node: SimulatedNode, source: str) -> None:
    """adminAccess includes devices of other claims: a device setup would change them."""
    node.preparer.prepare(claim("holder", "gpu-0", config=[partition(2)]))
    held, calls = dict(node.hardware), list(node.partitions.calls)
    config = copy.deepcopy(partition(4)) | {"source": source}
    node.preparer.prepare(claim("spy", result("gpu-0", adminAccess=True), config=[config]))
    assert (node.hardware, node.partitions.calls) == (held, calls)
    node.preparer.unprepare("spy")
    assert (node.hardware, node.partitions.calls) == (held, calls)
    assert node.usable("holder")


def test_a_container_gets_only_nodes_of_the_allocated_gpu(node: SimulatedNode) -> None:
    node.preparer.prepare(claim("other", "gpu-4"))
    prepared_results = node.preparer.prepare(claim("a", "gpu-3"))
    edits = applied_edits(node.registry(), prepared_results[0].cdi_device_ids)
    # Simulated device nodes are mounted.
    paths = {node.path for node in edits.device_nodes} | {mount.container_path for mount in edits.mounts}
    assert {path for path in paths if path.startswith("/dev")} == {"/dev/dri/card3", "/dev/dri/renderD131", "/dev/kfd"}
