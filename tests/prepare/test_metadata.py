"""Metadata files of prepared claims: their contents, their mounts, and recovery after a crash."""

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
from prepare.simulated_node import DRIVER, POOL, Crash, SimulatedNode, claim, partition, result

BASE = "/var/run/kubernetes.io/dra-device-attributes"


@pytest.fixture
def node(tmp_path: Path) -> SimulatedNode:
    node = SimulatedNode(tmp_path, metadata=True)
    device = node.devices["gpu-0"]
    attributes = {
        "productName": Attribute.of("AMD Instinct MI300X"),
        "resource.kubernetes.io/numaNode": Attribute.of(1),
        "tensorCores": Attribute.of(True),
        "driverVersion": Attribute.of_version("6.12.12"),
    }
    node.devices["gpu-0"] = msgspec.structs.replace(device, attributes=attributes)
    return node


def from_template(uid: str, pod_claim_name: str, *devices: Any) -> dict[str, Any]:
    claim_ = claim(uid, *devices)
    claim_["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": pod_claim_name}
    return claim_


def mounts(node: SimulatedNode, ids: tuple[str, ...]) -> dict[str, Path]:
    """Return the files of the host by container path below the metadata directory, for a container with these ids."""
    mounts_ = applied_edits(node.registry(), list(ids)).mounts
    for mount in mounts_:
        if mount.container_path.startswith(BASE):
            assert set(mount.options) == {"ro", "bind"}
    return {
        mount.container_path.removeprefix(BASE + "/"): Path(mount.host_path)
        for mount in mounts_
        if mount.container_path.startswith(BASE)
    }


def test_a_container_reads_the_metadata_of_its_device(node: SimulatedNode) -> None:
    prepared = node.preparer.prepare(claim("uid-1", "gpu-0"))
    mounted = mounts(node, prepared[0].cdi_device_ids)
    path = f"resourceclaims/claim-uid-1/gpus/{DRIVER}-metadata.json"
    assert list(mounted) == [path]
    assert json.loads(mounted[path].read_text()) == {
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
    assert mounted[path].stat().st_mode & 0o777 == 0o644


def test_a_claim_from_a_template_is_mounted_by_its_pod_claim_name(node: SimulatedNode) -> None:
    prepared = node.preparer.prepare(from_template("uid-1", "my-gpu", "gpu-0"))
    ((path, file),) = mounts(node, prepared[0].cdi_device_ids).items()
    assert path == f"resourceclaimtemplates/my-gpu/gpus/{DRIVER}-metadata.json"
    assert json.loads(file.read_text())["podClaimName"] == "my-gpu"
    # This also holds after a rebuild from the ledger alone.
    file.unlink()
    node.specs.file("uid-1").unlink()
    node.crash_and_restart()
    assert node.preparer.recovery.recover().rebuilt == ("uid-1",)
    assert mounts(node, prepared[0].cdi_device_ids) == {path: file} and file.exists()


@pytest.mark.parametrize("name", ["../../etc", "a/b", "", "A", "x" * 64, "-a"])
def test_an_invalid_annotation_never_becomes_part_of_a_path(node: SimulatedNode, name: str) -> None:
    prepared = node.preparer.prepare(from_template("uid-1", name, "gpu-0"))
    assert list(mounts(node, prepared[0].cdi_device_ids)) == [f"resourceclaims/claim-uid-1/gpus/{DRIVER}-metadata.json"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda claim_: claim_["metadata"].update(name="../x"), "claim name '../x' cannot be part of a path"),
        (
            lambda claim_: claim_["status"]["allocation"]["devices"]["results"][0].update(request="../gpus"),
            r"request name '..' cannot be part of a path",
        ),
    ],
)
def test_names_with_path_separators_are_refused(node: SimulatedNode, change: Any, message: str) -> None:
    claim_ = claim("uid-1", "gpu-0")
    change(claim_)
    with pytest.raises(PermanentError, match=message):
        node.preparer.prepare(claim_)
    assert node.ledger.entries() == [] and not node.metadata_dir.exists()


def test_each_request_has_one_file_with_its_first_device(node: SimulatedNode) -> None:
    results = [result("gpu-0", "one/big"), result("gpu-1", "two"), result("gpu-2", "two"), result("gpu-3", "one/big")]
    prepared = node.preparer.prepare(claim("a", *results))
    of_device = {device.device: mounts(node, device.cdi_device_ids) for device in prepared}
    assert [len(mounted) for mounted in of_device.values()] == [1, 1, 0, 0]
    first = json.loads(next(iter(of_device["gpu-0"].values())).read_text())
    second = json.loads(next(iter(of_device["gpu-1"].values())).read_text())
    assert f"resourceclaims/claim-a/one/{DRIVER}-metadata.json" in of_device["gpu-0"]
    assert first["requests"][0]["name"] == "one/big", "the chosen subrequest is included"
    assert [device["name"] for device in first["requests"][0]["devices"]] == ["gpu-0", "gpu-3"]
    assert [device["name"] for device in second["requests"][0]["devices"]] == ["gpu-1", "gpu-2"]
    # The same file is rebuilt from the ledger alone.
    node.metadata_dir.joinpath("a", "one.json").unlink()
    node.preparer.recovery.repair()
    assert json.loads(next(iter(of_device["gpu-0"].values())).read_text()) == first


def test_two_shares_of_a_device_have_files_of_their_requests(node: SimulatedNode) -> None:
    shares = [result("gpu-0", "small", shareID="s1"), result("gpu-0", "large", shareID="s2")]
    small, large = node.preparer.prepare(claim("a", *shares))
    assert list(mounts(node, small.cdi_device_ids)) == [f"resourceclaims/claim-a/small/{DRIVER}-metadata.json"]
    assert list(mounts(node, large.cdi_device_ids)) == [f"resourceclaims/claim-a/large/{DRIVER}-metadata.json"]


def test_metadata_of_a_nic_has_its_interface(node: SimulatedNode) -> None:
    node.add_interface("eth2")
    node.devices["nic-0"] = Device(
        "nic-0",
        "nic",
        "mellanox",
        "0000:40:00.0",
        attributes={"mac": Attribute.of("b8:ce:f6:00:00:01")},
        identity={"ifname": "eth2"},
    )
    prepared = node.preparer.prepare(claim("a", "nic-0"))
    (file,) = mounts(node, prepared[0].cdi_device_ids).values()
    device = json.loads(file.read_text())["requests"][0]["devices"][0]
    assert device["networkData"] == {"interfaceName": "eth2", "hardwareAddress": "b8:ce:f6:00:00:01"}


def test_a_repeat_keeps_a_correct_file_and_restores_a_missing_one(node: SimulatedNode, caplog: Any) -> None:
    prepared = node.preparer.prepare(claim("a", "gpu-0"))
    file = node.metadata_dir / "a" / "gpus.json"
    before = (file.stat().st_ino, file.stat().st_mtime_ns)
    assert node.preparer.prepare(claim("a", "gpu-0")) == prepared
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == before and "written again" not in caplog.text
    content = file.read_bytes()
    file.unlink()
    assert node.preparer.prepare(claim("a", "gpu-0")) == prepared
    assert file.read_bytes() == content and "written again" in caplog.text


def test_running_containers_see_a_change_as_a_new_generation(node: SimulatedNode) -> None:
    node.preparer.prepare(claim("a", "gpu-0"))
    file = node.metadata_dir / "a" / "gpus.json"
    with file.open() as bound:  # like a bind mount, an open file follows the inode, not the name
        device = node.devices["gpu-0"]
        node.devices["gpu-0"] = msgspec.structs.replace(
            device, attributes={**device.attributes, "driverVersion": Attribute.of_version("6.14.0")}
        )
        report = node.preparer.recovery.repair()
        metadata = json.load(bound)
    assert report.kept == ("a",), "a change is not damage"
    assert metadata["metadata"]["generation"] == 2
    assert metadata["requests"][0]["devices"][0]["attributes"]["driverVersion"] == {"version": "6.14.0"}
    node.devices["gpu-0"] = msgspec.structs.replace(device, attributes={})
    node.preparer.recovery.repair()
    assert json.loads(file.read_text())["metadata"]["generation"] == 3, "nothing of the longer document remains"


@pytest.mark.parametrize("damage", ["", "{", '{"metadata": {"generation": "x"}}', "\0" * 600])
def test_a_damaged_file_is_repaired_in_place(node: SimulatedNode, damage: str) -> None:
    node.preparer.prepare(claim("a", "gpu-0"))
    file = node.metadata_dir / "a" / "gpus.json"
    content, inode = file.read_bytes(), file.stat().st_ino
    file.write_text(damage)
    assert node.preparer.recovery.repair().rebuilt == ("a",)
    assert file.read_bytes() == content and file.stat().st_ino == inode


def test_unprepare_removes_the_files_and_is_idempotent(node: SimulatedNode) -> None:
    node.preparer.prepare(claim("a", "gpu-0"))
    node.preparer.prepare(claim("b", "gpu-1"))
    assert node.preparer.unprepare("a") and not node.preparer.unprepare("a")
    assert [path.name for path in node.metadata_dir.iterdir()] == ["b"]
    # An earlier agent may have left files of a claim that is not in the ledger.
    (node.metadata_dir / "stranger").mkdir()
    assert node.preparer.unprepare("stranger") and not (node.metadata_dir / "stranger").exists()


def test_an_unwritable_directory_fails_the_claim(node: SimulatedNode) -> None:
    node.metadata_dir.parent.mkdir(parents=True)
    node.metadata_dir.write_text("in the way")
    with pytest.raises(RetryableError, match=r"gpus.json: cannot write the claim's metadata: Not a directory"):
        node.preparer.prepare(claim("a", "gpu-0"))
    assert node.specs.claims() == {}
    node.metadata_dir.unlink()
    assert node.preparer.prepare(claim("a", "gpu-0")) and node.usable("a")


def test_disabled_metadata_removes_existing_files(node: SimulatedNode) -> None:
    prepared = node.preparer.prepare(claim("a", "gpu-0"))
    node.metadata_enabled = False
    node.crash_and_restart()
    assert node.preparer.recovery.recover().rebuilt == ("a",)
    assert list(node.metadata_dir.iterdir()) == [] and mounts(node, prepared[0].cdi_device_ids) == {}
    assert node.preparer.prepare(claim("a", "gpu-0")) == prepared, "the CDI ids in the kubelet stay valid"
    node.metadata_enabled = True
    node.crash_and_restart()
    node.preparer.recovery.recover()
    assert len(mounts(node, prepared[0].cdi_device_ids)) == 1 and node.usable("a")


WITH_SETUP = claim("a", "gpu-0", "gpu-1", config=[partition(2)])
TWO_REQUESTS = claim("a", result("gpu-0", "one"), result("gpu-1", "two"))


@pytest.mark.parametrize("keep_unsynced", [False, True])
@pytest.mark.parametrize("claim_", [TWO_REQUESTS, WITH_SETUP], ids=["plain", "with set-up"])
def test_a_kill_at_any_point_of_prepare_is_recovered(
    tmp_path: Path, claim_: dict[str, Any], keep_unsynced: bool
) -> None:
    rehearsal = SimulatedNode(tmp_path / "rehearsal", metadata=True)
    rehearsal.preparer.prepare(claim_)
    points = rehearsal.points.seen
    assert points.index("after complete") < points.index("before metadata")
    assert points.index("after metadata") < points.index("before write")
    for index, point in enumerate(points):
        node = SimulatedNode(tmp_path / f"{index}", metadata=True)
        node.memory.keep_unsynced = keep_unsynced
        node.preparer.prepare(claim("neighbour", "gpu-7"))
        node.points.arm(index)
        with pytest.raises(Crash, match=point):
            node.preparer.prepare(claim_)
        node.crash_and_restart()
        report = node.preparer.recovery.recover()
        assert report.problems == () and "neighbour" in report.kept, point
        present = {path.name for path in node.metadata_dir.iterdir()}
        is_kept = index >= points.index("after complete")
        assert present == ({"neighbour", "a"} if is_kept else {"neighbour"}), point
        assert node.preparer.prepare(claim_) and node.usable("a")
        assert not list(node.metadata_dir.rglob(".*")), "temporary files remain"


def test_a_kill_at_any_point_of_unprepare_is_recovered(tmp_path: Path) -> None:
    rehearsal = SimulatedNode(tmp_path / "rehearsal", metadata=True)
    rehearsal.preparer.prepare(TWO_REQUESTS)
    rehearsal.points.arm(None)
    rehearsal.preparer.unprepare("a")
    assert "after metadata goes" in rehearsal.points.seen
    for index, point in enumerate(rehearsal.points.seen):
        node = SimulatedNode(tmp_path / f"{index}", metadata=True)
        node.preparer.prepare(TWO_REQUESTS)
        node.points.arm(index)
        with pytest.raises(Crash, match=point):
            node.preparer.unprepare("a")
        node.crash_and_restart()
        assert node.preparer.recovery.recover().problems == ()
        if node.ledger.get("a") is not None:
            assert node.usable("a"), f"{point}: a held claim must be usable"
        node.preparer.unprepare("a")
        assert node.ledger.entries() == [] and list(node.metadata_dir.iterdir()) == []


def test_a_torn_file_is_repaired_at_startup(node: SimulatedNode) -> None:
    """After a power loss the ledger is on disk, but the files are not."""
    node.preparer.prepare(TWO_REQUESTS)
    (node.metadata_dir / "a" / "one.json").write_bytes(b"")
    (node.metadata_dir / "a" / "two.json").unlink()
    (node.metadata_dir / "a" / ".two.json.1-1.tmp").write_bytes(b"{")
    node.crash_and_restart()
    assert node.preparer.recovery.recover().rebuilt == ("a",) and node.usable("a")
    for name in ("one", "two"):
        assert json.loads((node.metadata_dir / "a" / f"{name}.json").read_text())["metadata"]["uid"] == "a"
