"""Claims whose author puts paths, lines and endless structures where names and settings belong (attacker A).

The API server refuses most of these names. The agent does not rely on that: other clients reach its socket, too.
"""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest

from dra_agent.cdi.registry import applied_edits
from dra_agent.errors import AgentError, PermanentError
from prepare.simulated_world import World, claim, partition, result

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
    """A directory that has room around it: `tmp_path.parent` holds the files of all earlier tests."""
    return tmp_path / "around" / "machine"


@pytest.fixture(params=[True, None], ids=["metadata", "plain"])
def world(machine: Path, request: pytest.FixtureRequest) -> World:
    return World(machine / "host", metadata=request.param)


def hostile(place: str, name: str) -> dict[str, Any]:
    made = claim("uid-1", result("gpu-0"))
    allocated = made["status"]["allocation"]["devices"]["results"][0]
    if place in ("uid", "name", "namespace"):
        made["metadata"][place] = name
    elif place == "request":
        allocated["request"] = name
        made["spec"]["devices"]["requests"][0]["name"] = name
    elif place == "share":
        allocated.update(shareID=name, consumedCapacity={"memory": "4Gi"})
    else:
        allocated["device"] = name
    return made


def files(root: Path) -> set[Path]:
    return {path.relative_to(root) for path in root.rglob("*")}


@pytest.mark.parametrize("name", NAMES, ids=ascii)
@pytest.mark.parametrize("place", PLACES)
def test_no_name_of_a_claim_becomes_a_path_or_a_variable(
    world: World, machine: Path, tmp_path: Path, place: str, name: str
) -> None:
    world.preparer.prepare(claim("innocent", "gpu-7"))
    before, outside = files(machine), files(tmp_path)
    wanted = hostile(place, name)
    try:
        answers = world.preparer.prepare(wanted)
    except AgentError as error:
        assert str(error)
    else:
        registry = world.registry()
        for answer in answers:
            for variable in applied_edits(registry, answer.cdi_device_ids).env:
                assert VARIABLE.fullmatch(variable), variable
    made = files(machine) - before
    allowed = (world.cdi.relative_to(machine), world.metadata_dir.relative_to(machine))
    assert all(any(path.is_relative_to(folder) for folder in allowed) or path in allowed[1].parents for path in made), (
        made
    )
    assert files(tmp_path) - outside == {machine.relative_to(tmp_path) / path for path in made}
    try:
        world.preparer.unprepare(wanted["metadata"]["uid"])
    except AgentError as error:
        assert str(error)
    left = {path for path in files(machine) - before if (machine / path).is_file()}
    assert not left, f"left after the claim was released: {left}"
    assert world.usable("innocent") and world.ledger.get("innocent") is not None


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
def test_parameters_of_any_size_and_depth_are_refused_with_a_short_message(world: World, more: dict[str, Any]) -> None:
    with pytest.raises(PermanentError) as refused:
        world.preparer.prepare(claim("a", "gpu-0", config=[partition(**{"size": 1, **more})]))
    message = str(refused.value)
    assert len(message) < 4096 and "\n" not in message, message[:200]
    assert world.hardware == {} and world.ledger.entries() == [] and world.specs.claims() == {}


@pytest.mark.parametrize("source", ["FromClaim", "FromClass"])
def test_who_only_watches_a_device_has_nothing_set_up_on_it(world: World, source: str) -> None:
    """adminAccess reaches devices of other claims: with a set-up it would change them under their holders."""
    world.preparer.prepare(claim("holder", "gpu-0", config=[partition(2)]))
    held, calls = dict(world.hardware), list(world.partitions.calls)
    config = copy.deepcopy(partition(4)) | {"source": source}
    world.preparer.prepare(claim("spy", result("gpu-0", adminAccess=True), config=[config]))
    assert (world.hardware, world.partitions.calls) == (held, calls)
    world.preparer.unprepare("spy")
    assert (world.hardware, world.partitions.calls) == (held, calls)
    assert world.usable("holder")


def test_a_container_gets_the_nodes_of_its_own_gpu_and_no_others(world: World) -> None:
    world.preparer.prepare(claim("other", "gpu-4"))
    answers = world.preparer.prepare(claim("a", "gpu-3"))
    edits = applied_edits(world.registry(), answers[0].cdi_device_ids)
    # What stands for nodes on a simulated host is mounted.
    paths = {node.path for node in edits.device_nodes} | {mount.container_path for mount in edits.mounts}
    assert {path for path in paths if path.startswith("/dev")} == {"/dev/dri/card3", "/dev/dri/renderD131", "/dev/kfd"}
