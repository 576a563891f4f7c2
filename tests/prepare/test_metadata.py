"""Metadata files of prepared claims: what they say, who sees them, and that no crash leaves a wrong one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dra_agent.cdi.registry import applied_edits
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.inventory.api import Attribute
from dra_agent.inventory.model import Device
from prepare.simulated_world import DRIVER, POOL, Crash, World, claim, partition, result

BASE = "/var/run/kubernetes.io/dra-device-attributes"


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path, metadata=True)
    device = world.devices["gpu-0"]
    attributes = {
        "productName": Attribute.of("AMD Instinct MI300X"),
        "resource.kubernetes.io/numaNode": Attribute.of(1),
        "tensorCores": Attribute.of(True),
        "driverVersion": Attribute.of_version("6.12.12"),
    }
    world.devices["gpu-0"] = msgspec.structs.replace(device, attributes=attributes)
    return world


def from_template(uid: str, pod_claim_name: str, *devices: Any) -> dict[str, Any]:
    made = claim(uid, *devices)
    made["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": pod_claim_name}
    return made


def mounts(world: World, ids: tuple[str, ...]) -> dict[str, Path]:
    """What a container with these ids sees below the directory of metadata: by path, the file of the host."""
    found = applied_edits(world.registry(), list(ids)).mounts
    for mount in found:
        if mount.container_path.startswith(BASE):
            assert set(mount.options) == {"ro", "bind"}
    return {
        mount.container_path.removeprefix(BASE + "/"): Path(mount.host_path)
        for mount in found
        if mount.container_path.startswith(BASE)
    }


def test_a_container_reads_what_its_device_is(world: World) -> None:
    answer = world.preparer.prepare(claim("uid-1", "gpu-0"))
    seen = mounts(world, answer[0].cdi_device_ids)
    path = f"resourceclaims/claim-uid-1/gpus/{DRIVER}-metadata.json"
    assert list(seen) == [path]
    assert json.loads(seen[path].read_text()) == {
        "kind": "DeviceMetadata",
        "apiVersion": "metadata.resource.k8s.io/v1beta1",
        "metadata": {"name": "claim-uid-1", "namespace": "default", "uid": "uid-1", "generation": 1},
        "requests": [
            {
                "name": "gpus",
                "devices": [
                    {
                        "driver": DRIVER,
                        "pool": POOL,
                        "name": "gpu-0",
                        "attributes": {
                            "productName": {"string": "AMD Instinct MI300X"},
                            "resource.kubernetes.io/numaNode": {"int": 1},
                            "tensorCores": {"bool": True},
                            "driverVersion": {"version": "6.12.12"},
                        },
                    }
                ],
            }
        ],
    }
    assert seen[path].stat().st_mode & 0o777 == 0o644


def test_a_claim_of_a_template_is_found_by_the_name_that_the_pod_gives_it(world: World) -> None:
    answer = world.preparer.prepare(from_template("uid-1", "my-gpu", "gpu-0"))
    ((path, file),) = mounts(world, answer[0].cdi_device_ids).items()
    assert path == f"resourceclaimtemplates/my-gpu/gpus/{DRIVER}-metadata.json"
    assert json.loads(file.read_text())["podClaimName"] == "my-gpu"
    # Also when it is rebuilt from the ledger alone.
    file.unlink()
    world.specs.file("uid-1").unlink()
    world.crash_and_restart()
    assert world.preparer.recover().rebuilt == ("uid-1",)
    assert mounts(world, answer[0].cdi_device_ids) == {path: file} and file.exists()


@pytest.mark.parametrize("name", ["../../etc", "a/b", "", "A", "x" * 64, "-a"])
def test_an_annotation_that_is_no_name_never_becomes_part_of_a_path(world: World, name: str) -> None:
    answer = world.preparer.prepare(from_template("uid-1", name, "gpu-0"))
    assert list(mounts(world, answer[0].cdi_device_ids)) == [f"resourceclaims/claim-uid-1/gpus/{DRIVER}-metadata.json"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda made: made["metadata"].update(name="../x"), "claim name '../x' cannot be part of a path"),
        (
            lambda made: made["status"]["allocation"]["devices"]["results"][0].update(request="../gpus"),
            r"request name '..' cannot be part of a path",
        ),
    ],
)
def test_names_that_would_leave_the_directory_are_refused(world: World, change: Any, message: str) -> None:
    made = claim("uid-1", "gpu-0")
    change(made)
    with pytest.raises(PermanentError, match=message):
        world.preparer.prepare(made)
    assert world.ledger.entries() == [] and not world.metadata_dir.exists()


def test_each_request_has_one_file_that_its_first_device_brings(world: World) -> None:
    held = [result("gpu-0", "one/big"), result("gpu-1", "two"), result("gpu-2", "two"), result("gpu-3", "one/big")]
    answer = world.preparer.prepare(claim("a", *held))
    of_device = {device.device: mounts(world, device.cdi_device_ids) for device in answer}
    assert [len(seen) for seen in of_device.values()] == [1, 1, 0, 0]
    one = json.loads(next(iter(of_device["gpu-0"].values())).read_text())
    two = json.loads(next(iter(of_device["gpu-1"].values())).read_text())
    assert f"resourceclaims/claim-a/one/{DRIVER}-metadata.json" in of_device["gpu-0"]
    assert one["requests"][0]["name"] == "one/big", "the subrequest that was chosen is told"
    assert [device["name"] for device in one["requests"][0]["devices"]] == ["gpu-0", "gpu-3"]
    assert [device["name"] for device in two["requests"][0]["devices"]] == ["gpu-1", "gpu-2"]
    # The same from the ledger, where the claim is not at hand.
    world.metadata_dir.joinpath("a", "one.json").unlink()
    world.preparer.repair()
    assert json.loads(next(iter(of_device["gpu-0"].values())).read_text()) == one


def test_two_shares_of_one_device_bring_the_files_of_their_own_requests(world: World) -> None:
    shares = [result("gpu-0", "small", shareID="s1"), result("gpu-0", "large", shareID="s2")]
    small, large = world.preparer.prepare(claim("a", *shares))
    assert list(mounts(world, small.cdi_device_ids)) == [f"resourceclaims/claim-a/small/{DRIVER}-metadata.json"]
    assert list(mounts(world, large.cdi_device_ids)) == [f"resourceclaims/claim-a/large/{DRIVER}-metadata.json"]


def test_a_nic_says_its_interface(world: World) -> None:
    world.devices["nic-0"] = Device(
        "nic-0",
        "nic",
        "mellanox",
        "0000:40:00.0",
        attributes={"mac": Attribute.of("b8:ce:f6:00:00:01")},
        identity={"ifname": "eth2"},
    )
    answer = world.preparer.prepare(claim("a", "nic-0"))
    (file,) = mounts(world, answer[0].cdi_device_ids).values()
    device = json.loads(file.read_text())["requests"][0]["devices"][0]
    assert device["networkData"] == {"interfaceName": "eth2", "hardwareAddress": "b8:ce:f6:00:00:01"}


def test_a_repeat_leaves_a_right_file_alone_and_mends_a_lost_one(world: World, caplog: Any) -> None:
    answer = world.preparer.prepare(claim("a", "gpu-0"))
    file = world.metadata_dir / "a" / "gpus.json"
    before = (file.stat().st_ino, file.stat().st_mtime_ns)
    assert world.preparer.prepare(claim("a", "gpu-0")) == answer
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == before and "written again" not in caplog.text
    content = file.read_bytes()
    file.unlink()
    assert world.preparer.prepare(claim("a", "gpu-0")) == answer
    assert file.read_bytes() == content and "written again" in caplog.text


def test_running_containers_see_a_change_as_a_new_generation(world: World) -> None:
    world.preparer.prepare(claim("a", "gpu-0"))
    file = world.metadata_dir / "a" / "gpus.json"
    with file.open() as bound:  # a bind mount holds the file, not its name
        device = world.devices["gpu-0"]
        world.devices["gpu-0"] = msgspec.structs.replace(
            device, attributes={**device.attributes, "driverVersion": Attribute.of_version("6.14.0")}
        )
        report = world.preparer.repair()
        seen = json.load(bound)
    assert report.kept == ("a",), "a change is no damage"
    assert seen["metadata"]["generation"] == 2
    assert seen["requests"][0]["devices"][0]["attributes"]["driverVersion"] == {"version": "6.14.0"}
    world.devices["gpu-0"] = msgspec.structs.replace(device, attributes={})
    world.preparer.repair()
    assert json.loads(file.read_text())["metadata"]["generation"] == 3, "nothing of the longer document may be left"


@pytest.mark.parametrize("damage", ["", "{", '{"metadata": {"generation": "x"}}', "\0" * 600])
def test_a_damaged_file_is_mended_in_place(world: World, damage: str) -> None:
    world.preparer.prepare(claim("a", "gpu-0"))
    file = world.metadata_dir / "a" / "gpus.json"
    content, inode = file.read_bytes(), file.stat().st_ino
    file.write_text(damage)
    assert world.preparer.repair().rebuilt == ("a",)
    assert file.read_bytes() == content and file.stat().st_ino == inode


def test_unprepare_removes_the_files_and_can_be_repeated(world: World) -> None:
    world.preparer.prepare(claim("a", "gpu-0"))
    world.preparer.prepare(claim("b", "gpu-1"))
    assert world.preparer.unprepare("a") and not world.preparer.unprepare("a")
    assert [path.name for path in world.metadata_dir.iterdir()] == ["b"]
    # An earlier agent with the files' option may have left them for a claim that the ledger does not know.
    (world.metadata_dir / "stranger").mkdir()
    assert world.preparer.unprepare("stranger") and not (world.metadata_dir / "stranger").exists()


def test_a_disk_that_refuses_fails_the_claim_and_leaves_nothing(world: World) -> None:
    world.metadata_dir.parent.mkdir(parents=True)
    world.metadata_dir.write_text("in the way")
    with pytest.raises(RetryableError, match=r"gpus.json: cannot write the claim's metadata: Not a directory"):
        world.preparer.prepare(claim("a", "gpu-0"))
    assert world.specs.claims() == {}
    world.metadata_dir.unlink()
    assert world.preparer.prepare(claim("a", "gpu-0")) and world.usable("a")


def test_turned_off_nothing_is_written_and_what_was_is_removed(world: World) -> None:
    answer = world.preparer.prepare(claim("a", "gpu-0"))
    world.metadata_enabled = False
    world.crash_and_restart()
    assert world.preparer.recover().rebuilt == ("a",)
    assert list(world.metadata_dir.iterdir()) == [] and mounts(world, answer[0].cdi_device_ids) == {}
    assert world.preparer.prepare(claim("a", "gpu-0")) == answer, "the kubelet's ids stay good"
    world.metadata_enabled = True
    world.crash_and_restart()
    world.preparer.recover()
    assert len(mounts(world, answer[0].cdi_device_ids)) == 1 and world.usable("a")


WITH_SETUP = claim("a", "gpu-0", "gpu-1", config=[partition(2)])
TWO_REQUESTS = claim("a", result("gpu-0", "one"), result("gpu-1", "two"))


@pytest.mark.parametrize("keep_unsynced", [False, True])
@pytest.mark.parametrize("wanted", [TWO_REQUESTS, WITH_SETUP], ids=["plain", "with set-up"])
def test_killed_while_preparing(tmp_path: Path, wanted: dict[str, Any], keep_unsynced: bool) -> None:
    rehearsal = World(tmp_path / "rehearsal", metadata=True)
    rehearsal.preparer.prepare(wanted)
    points = rehearsal.points.seen
    assert points.index("after complete") < points.index("before metadata")
    assert points.index("after metadata") < points.index("before write")
    for index, point in enumerate(points):
        world = World(tmp_path / f"{index}", metadata=True)
        world.memory.keep_unsynced = keep_unsynced
        world.preparer.prepare(claim("neighbour", "gpu-7"))
        world.points.arm(index)
        with pytest.raises(Crash, match=point):
            world.preparer.prepare(wanted)
        world.crash_and_restart()
        report = world.preparer.recover()
        assert report.problems == () and "neighbour" in report.kept, point
        there = {path.name for path in world.metadata_dir.iterdir()}
        kept = index >= points.index("after complete")
        assert there == ({"neighbour", "a"} if kept else {"neighbour"}), point
        assert world.preparer.prepare(wanted) and world.usable("a")
        assert not list(world.metadata_dir.rglob(".*")), "temporary files are left"


def test_killed_while_unpreparing(tmp_path: Path) -> None:
    rehearsal = World(tmp_path / "rehearsal", metadata=True)
    rehearsal.preparer.prepare(TWO_REQUESTS)
    rehearsal.points.arm(None)
    rehearsal.preparer.unprepare("a")
    assert "after metadata goes" in rehearsal.points.seen
    for index, point in enumerate(rehearsal.points.seen):
        world = World(tmp_path / f"{index}", metadata=True)
        world.preparer.prepare(TWO_REQUESTS)
        world.points.arm(index)
        with pytest.raises(Crash, match=point):
            world.preparer.unprepare("a")
        world.crash_and_restart()
        assert world.preparer.recover().problems == ()
        if world.ledger.get("a") is not None:
            assert world.usable("a"), f"{point}: still held, so it must still be usable"
        world.preparer.unprepare("a")
        assert world.ledger.entries() == [] and list(world.metadata_dir.iterdir()) == []


def test_a_torn_file_is_mended_at_start(world: World) -> None:
    """A power cut: the ledger is on the disk, the files are not."""
    world.preparer.prepare(TWO_REQUESTS)
    (world.metadata_dir / "a" / "one.json").write_bytes(b"")
    (world.metadata_dir / "a" / "two.json").unlink()
    (world.metadata_dir / "a" / ".two.json.1-1.tmp").write_bytes(b"{")
    world.crash_and_restart()
    assert world.preparer.recover().rebuilt == ("a",) and world.usable("a")
    for name in ("one", "two"):
        assert json.loads((world.metadata_dir / "a" / f"{name}.json").read_text())["metadata"]["uid"] == "a"
