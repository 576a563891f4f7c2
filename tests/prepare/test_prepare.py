"""Prepare, repeat and unprepare, and every reason for which a claim is refused."""

from __future__ import annotations

import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from dra_agent.cdi.registry import applied_edits
from dra_agent.claim import ClaimDevice
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.inventory.api import Attribute
from dra_agent.inventory.model import Device
from dra_agent.prepare.ledger import DeviceHeldError
from dra_agent.prepare.locks import LockedError
from eventually import eventually
from last_write import last_write
from prepare.simulated_node import DRIVER, POOL, SimulatedNode, claim, partition, result


def test_a_claim_gets_cdi_ids_that_resolve_to_its_device(node: SimulatedNode) -> None:
    prepared = node.preparer.prepare(claim("uid-1", "gpu-3"))
    cdi_id = f"{DRIVER}/claim=uid-1-gpu-3"
    assert prepared == [ClaimDevice(POOL, "gpu-3", ("gpus",), cdi_device_ids=(cdi_id,))]
    edits = applied_edits(node.registry(), [cdi_id])
    assert {mount.container_path for mount in edits.mounts} == {"/dev/kfd", "/dev/dri/card3", "/dev/dri/renderD131"}
    assert "DRA_AGENT_CLAIM=default/claim-uid-1" in edits.env
    assert "DRA_AGENT_REQUEST_GPUS=gpu-3" in edits.env
    assert (node.cdi / "dra-agent.internal-claim_uid-1.json").stat().st_mode & 0o777 == 0o644


def test_prepare_and_unprepare_sync_once(node: SimulatedNode) -> None:
    node.preparer.prepare(claim("a", "gpu-0"))
    assert node.memory.syncs == 1
    node.preparer.prepare(claim("a", "gpu-0"))
    assert node.memory.syncs == 1
    node.preparer.unprepare("a")
    assert node.memory.syncs == 2


def test_a_new_claim_replaces_a_leftover_spec_without_reading_it(
    node: SimulatedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.specs.write("a", b"of an earlier attempt")
    with monkeypatch.context() as patch:
        patch.setattr(node.specs, "read", lambda uid: pytest.fail("read"))
        node.preparer.prepare(claim("a", "gpu-0"))
    assert node.usable("a")


def test_unprepare_releases_everything_and_is_idempotent(node: SimulatedNode) -> None:
    node.preparer.prepare(claim("a", "gpu-0", "gpu-1"))
    assert node.preparer.unprepare("a") is True
    assert node.preparer.unprepare("a") is False
    assert node.preparer.unprepare("never-seen") is False
    assert list(node.cdi.iterdir()) == []
    assert node.preparer.prepare(claim("b", "gpu-0"))


def test_a_held_device_is_refused_and_its_holder_is_named(node: SimulatedNode) -> None:
    node.preparer.prepare(claim("a", "gpu-0", "gpu-1"))
    with pytest.raises(DeviceHeldError, match=r"gpu-1 is held by claim-a"):
        node.preparer.prepare(claim("b", "gpu-2", "gpu-1"))
    assert node.ledger.get("b") is None
    assert set(node.specs.claims()) == {"a"}
    assert node.preparer.prepare(claim("c", "gpu-2"))


def test_shares_and_admin_access_coexist_with_a_holder(node: SimulatedNode) -> None:
    first, second = (
        result("gpu-0", shareID=f"share-{number}", consumedCapacity={"memory": f"{number}Gi"}) for number in (1, 2)
    )
    first_result = node.preparer.prepare(claim("a", first))
    second_result = node.preparer.prepare(claim("b", second))
    assert first_result[0].share_id == "share-1" and second_result[0].cdi_device_ids == (
        f"{DRIVER}/claim=b-gpu-0-share-2",
    )
    assert (
        "DRA_AGENT_DEVICE_GPU_0_CAPACITY_MEMORY=2Gi"
        in applied_edits(node.registry(), second_result[0].cdi_device_ids).env
    )
    node.preparer.prepare(claim("monitor", result("gpu-0", adminAccess=True)))
    with pytest.raises(DeviceHeldError):
        node.preparer.prepare(claim("c", "gpu-0"))


def test_a_capacity_with_the_driver_as_domain_is_the_same_one(node: SimulatedNode) -> None:
    share = result("gpu-0", shareID="share", consumedCapacity={f"{DRIVER}/memory": "2Gi"})
    (prepared,) = node.preparer.prepare(claim("a", share))
    env = applied_edits(node.registry(), prepared.cdi_device_ids).env
    assert "DRA_AGENT_DEVICE_GPU_0_CAPACITY_MEMORY=2Gi" in env


def test_two_shares_of_a_device_are_two_cdi_devices(node: SimulatedNode) -> None:
    shares = [result("gpu-0", "small", shareID="s1"), result("gpu-0", "large", shareID="s2")]
    prepared = node.preparer.prepare(claim("a", *shares))
    assert len({device.cdi_device_ids for device in prepared}) == 2
    assert [device.requests for device in prepared] == [("small",), ("large",)]


def test_a_partition_and_its_whole_device_exclude_each_other(node: SimulatedNode) -> None:
    for index in (0, 1):
        whole = node.devices["gpu-0"]
        part = Device(
            f"gpu-0-part-{index}", "gpu", "amd", whole.pci_address, {}, nodes=whole.nodes, identity={"parent": "gpu-0"}
        )
        node.devices[part.name] = part
    node.preparer.prepare(claim("a", "gpu-0-part-0"))
    node.preparer.prepare(claim("b", "gpu-0-part-1"))
    with pytest.raises(DeviceHeldError):
        node.preparer.prepare(claim("c", "gpu-0"))
    node.preparer.unprepare("a")
    node.preparer.unprepare("b")
    node.preparer.prepare(claim("c", "gpu-0"))
    with pytest.raises(DeviceHeldError):
        node.preparer.prepare(claim("d", "gpu-0-part-1"))


def test_request_names_are_returned_without_subrequests(node: SimulatedNode) -> None:
    prepared = node.preparer.prepare(claim("a", result("gpu-0", "gpu/h100"), result("gpu-1", "gpu/h100")))
    assert [device.requests for device in prepared] == [("gpu",), ("gpu",)]
    env = applied_edits(node.registry(), [name for device in prepared for name in device.cdi_device_ids]).env
    assert "DRA_AGENT_REQUEST_GPU=gpu-0,gpu-1" in env


def test_devices_of_other_drivers_are_ignored(node: SimulatedNode) -> None:
    mixed = claim("a", "gpu-0", {**result("x"), "driver": "other.example"})
    assert [device.device for device in node.preparer.prepare(mixed)] == ["gpu-0"]
    foreign_claim = claim("b", {**result("x"), "driver": "other.example"})
    assert node.preparer.prepare(foreign_claim) == []
    assert node.ledger.get("b") is None


def test_a_repeat_returns_the_same_result_and_writes_nothing(node: SimulatedNode) -> None:
    first = node.preparer.prepare(claim("a", "gpu-0", "gpu-1"))
    file = node.specs.file("a")
    before = last_write(file)
    assert node.preparer.prepare(claim("a", "gpu-0", "gpu-1")) == first
    assert last_write(file) == before


@pytest.mark.parametrize("damage", ["missing", "edited", "empty", "link", "directory gone"])
def test_a_repeat_rebuilds_a_damaged_spec(node: SimulatedNode, damage: str) -> None:
    first = node.preparer.prepare(claim("a", "gpu-0"))
    file = node.specs.file("a")
    content = file.read_bytes()
    if damage == "missing":
        file.unlink()
    elif damage == "edited":
        file.write_bytes(content.replace(b"/dev/dri/card0", b"/dev/dri/card1"))
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "link":
        file.rename(node.cdi / "elsewhere")
        file.symlink_to("elsewhere")
    else:
        file.unlink()
        node.cdi.rmdir()
    assert node.preparer.prepare(claim("a", "gpu-0")) == first
    assert file.read_bytes() == content and not file.is_symlink()


def test_a_missing_device_node_fails_prepare(node: SimulatedNode) -> None:
    device_node = node.host.dev_path("/dev/dri/renderD128")
    device_node.unlink()
    with pytest.raises(RetryableError, match=r"device gpu-0: its device node .*/renderD128 cannot be used"):
        node.preparer.prepare(claim("a", "gpu-0"))
    assert node.ledger.entries() == []
    assert not node.cdi.exists() or list(node.cdi.iterdir()) == []
    device_node.touch()
    node.preparer.prepare(claim("a", "gpu-0"))
    device_node.unlink()
    with pytest.raises(RetryableError, match=r"renderD128"):
        node.preparer.prepare(claim("a", "gpu-0"))
    assert node.ledger.get("a") is not None, "a failing repeat must not release the devices of the claim"


def test_an_unknown_device_is_reported_with_its_pool(node: SimulatedNode) -> None:
    with pytest.raises(RetryableError, match=r"device gpu-99 of pool node-a/gpu: is not on this host now"):
        node.preparer.prepare(claim("a", "gpu-99"))
    assert node.ledger.entries() == []


def test_another_allocation_for_the_same_uid_is_refused(node: SimulatedNode) -> None:
    node.preparer.prepare(claim("a", "gpu-0"))
    with pytest.raises(PermanentError, match=r"prepared with other devices \(gpu-0\)"):
        node.preparer.prepare(claim("a", "gpu-1"))
    assert node.usable("a")


MALFORMED = {
    "no metadata": {},
    "no uid": {"metadata": {"name": "x"}},
    "uid with path": {**claim("../../etc/passwd", "gpu-0")},
    "uid hidden": {**claim(".hidden", "gpu-0")},
    "uid empty": {**claim("", "gpu-0")},
    "wrong type": {"metadata": {"name": "x", "uid": "u"}, "status": {"allocation": {"devices": {"results": {}}}}},
    "twice": claim("a", "gpu-0", result("gpu-0", "more")),
}


@pytest.mark.parametrize("name", list(MALFORMED))
def test_a_malformed_claim_is_one_clear_error(node: SimulatedNode, name: str) -> None:
    with pytest.raises(PermanentError) as caught:
        node.preparer.prepare(MALFORMED[name])
    assert "claim" in str(caught.value) and caught.value.hint
    assert node.ledger.entries() == [] and not node.cdi.exists()


def test_an_unallocated_claim_is_a_retryable_error(node: SimulatedNode) -> None:
    unallocated = claim("a")
    del unallocated["status"]
    with pytest.raises(RetryableError, match="default/claim-a: is not allocated"):
        node.preparer.prepare(unallocated)


def test_a_failing_claim_does_not_affect_others(node: SimulatedNode) -> None:
    node.devices["gpu-5"] = Device("gpu-5", "gpu", "amd", "x", {}, nodes=cast(Any, None))
    assert isinstance(node.preparer.prepare(claim("a", "gpu-0")), list)
    with pytest.raises(RetryableError):
        node.preparer.prepare(claim("b", "gpu-99"))
    with pytest.raises(DeviceHeldError):
        node.preparer.prepare(claim("c", "gpu-0"))
    with pytest.raises(TypeError):  # the plugin reports it as unexpected, see tests/kubelet_plugin
        node.preparer.prepare(claim("d", "gpu-5"))
    assert isinstance(node.preparer.prepare(claim("e", "gpu-1")), list)
    assert [entry.uid for entry in node.ledger.entries()] == ["a", "e"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "Timeslicing"}, r"config\[0\].opaque.parameters.kind: 'Timeslicing' of .* known kinds: Partition"),
        ({"kind": None}, r"config\[0\].opaque.parameters.kind: is missing"),
        ({"apiVersion": "v9"}, r"'Partition' of 'v9' is not known"),
        ({"size": "two"}, r"config\[0\].opaque.parameters.size: expected `int`, got `str`"),
        ({"sise": 2}, r"config\[0\].opaque.parameters.sise: no such field"),
        ({"size": 8}, r"default/claim-a: status.*config\[0\].opaque.parameters: size: at most 7 \(device gpu-0\)"),
    ],
)
def test_configuration_is_decoded_strictly(node: SimulatedNode, change: dict[str, Any], message: str) -> None:
    with pytest.raises(PermanentError, match=message):
        node.preparer.prepare(claim("a", "gpu-0", config=[partition(**change)]))
    assert node.ledger.entries() == []


def test_configuration_of_other_drivers_is_ignored(node: SimulatedNode) -> None:
    foreign_config = {"source": "FromClass", "opaque": {"driver": "other.example", "parameters": {"kind": "Odd"}}}
    assert node.preparer.prepare(claim("a", "gpu-0", config=[foreign_config]))


def test_a_full_disk_under_the_ledger_loses_no_claim(node: SimulatedNode) -> None:
    node.preparer.prepare(claim("held", "gpu-7"))
    node.memory.refuse = "no space left on device"
    with pytest.raises(RetryableError, match="no space left"):
        node.preparer.prepare(claim("a", "gpu-0"))
    with pytest.raises(RetryableError, match="no space left"):
        node.preparer.unprepare("held")
    node.memory.refuse = None
    assert node.preparer.prepare(claim("a", "gpu-0"))
    node.preparer.prepare(claim("held", "gpu-7"))
    assert node.usable("a") and node.usable("held")


def test_a_failure_during_prepare_is_undone_by_the_retry(node: SimulatedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    complete = node.ledger.complete

    def fail_complete(uid: str, payload: object) -> None:
        node.memory.refuse = "no space left on device"
        complete(uid, payload)

    monkeypatch.setattr(node.ledger, "complete", fail_complete)
    with pytest.raises(RetryableError, match="no space left"):
        node.preparer.prepare(claim("a", "gpu-0", config=[partition(2)]))
    monkeypatch.setattr(node.ledger, "complete", complete)
    node.memory.refuse = None
    assert node.preparer.prepare(claim("a", "gpu-0", config=[partition(3)]))
    assert node.usable("a") and node.hardware == {"gpu-0": "a"}


def test_an_unwritable_cdi_directory_is_named(node: SimulatedNode) -> None:
    node.cdi.write_text("a file where the directory should be")
    with pytest.raises(RetryableError, match=r"cdi/.*: cannot write the claim's CDI spec"):
        node.preparer.prepare(claim("a", "gpu-0"))
    assert node.ledger.entries() == []


def test_a_cdi_directory_on_proc_is_an_error(node: SimulatedNode) -> None:
    node.cdi = Path("/proc/dra-agent")
    node.start()
    with pytest.raises(RetryableError, match=r"/proc/dra-agent/.*: cannot write the claim's CDI spec"):
        node.preparer.prepare(claim("a", "gpu-0"))
    assert node.ledger.entries() == []


def prepare_with_retries(node: SimulatedNode, claim_: dict[str, Any]) -> list[ClaimDevice]:
    """Retry as the kubelet does while a device is held or locked."""

    def prepare() -> list[ClaimDevice]:
        try:
            return node.preparer.prepare(claim_)
        except (DeviceHeldError, LockedError):
            return []

    return eventually(prepare, f"{claim_['metadata']['uid']} never got its devices")


def test_concurrent_claims_never_share_a_device(node: SimulatedNode) -> None:
    """32 concurrent claims use 2 of 8 GPUs each; refused claims retry, and no device ever has two holders."""
    holders: dict[str, str] = {}
    guard = threading.Lock()

    def run_claim(number: int) -> None:
        uid = f"claim-{number}"
        names = [f"gpu-{number % 8}", f"gpu-{(number * 3 + 1) % 8}"]
        claim_ = claim(uid, *dict.fromkeys(names))
        prepare_with_retries(node, claim_)
        with guard:
            for name in dict.fromkeys(names):
                assert name not in holders, f"{name} is held by {holders[name]} and {uid}"
                holders[name] = uid
        assert node.specs.file(uid).exists()
        with guard:
            for name in dict.fromkeys(names):
                del holders[name]
        node.preparer.unprepare(uid)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(run_claim, range(32)))
    assert node.ledger.entries() == [] and node.specs.claims() == {}
    assert node.preparer.claim_locks.held == node.preparer.device_locks.held == []


def test_concurrent_prepares_of_a_claim_return_one_result(node: SimulatedNode) -> None:
    claim_ = claim("a", "gpu-0", config=[partition(2)])
    with ThreadPoolExecutor(8) as pool:
        prepared_results = list(pool.map(lambda _: prepare_with_retries(node, claim_), range(16)))
    assert all(prepared == prepared_results[0] for prepared in prepared_results)
    assert node.memory.syncs == 2, "one sync before the setup, one at the end"


def test_missing_features_of_a_container_are_logged(node: SimulatedNode, caplog: pytest.LogCaptureFixture) -> None:
    node.add_interface("eth7")
    node.devices["nic-0"] = Device("nic-0", "nic", "intel", "0000:31:00.0", {}, identity={"ifname": "eth7"})
    with caplog.at_level(logging.INFO):
        prepared = node.preparer.prepare(claim("a", "nic-0"))
    assert "stays on the host" in prepared[0].notes[0]
    (record,) = (record for record in caplog.records if record.message == "claim prepared")
    assert "stays on the host" in vars(record)["missing"][0]
    spec = json.loads(node.specs.file("a").read_text())
    env = spec["devices"][0]["containerEdits"]["env"]
    assert any(text.startswith("DRA_AGENT_DEVICE_NIC_0_NOTE=the network interface stays") for text in env)
    assert spec["cdiVersion"] == "0.3.0", "notes must not require a newer CDI version"


def adapter(node: SimulatedNode, **attributes: int) -> Path:
    """A network adapter in the place of a GPU, with these attributes; returns its folder."""
    about = {name: Attribute.of(value) for name, value in attributes.items()}
    node.devices["gpu-0"] = msgspec.structs.replace(node.devices["gpu-0"], family="nic", attributes=about)
    folder = node.host.sysfs / "bus/pci/devices" / node.devices["gpu-0"].pci_address
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize("attributes", [{}, {"sriovVfs": 0}])
def test_an_adapter_that_got_virtual_functions_meanwhile_is_refused_until_they_are_removed(
    node: SimulatedNode, attributes: dict[str, int]
) -> None:
    folder = adapter(node, **attributes)
    (folder / "virtfn0").symlink_to("../0000:00:01.0")
    with pytest.raises(RetryableError, match="device gpu-0: it has 1 virtual functions since it was published"):
        node.preparer.prepare(claim("a", "gpu-0"))
    assert node.ledger.entries() == []
    (folder / "virtfn0").unlink()
    assert node.preparer.prepare(claim("a", "gpu-0"))
    (folder / "virtfn0").symlink_to("../0000:00:01.0")
    node.crash_and_restart()
    assert node.preparer.prepare(claim("a", "gpu-0")), "its container starts again"


def test_an_adapter_that_got_subfunctions_meanwhile_is_refused(node: SimulatedNode) -> None:
    (adapter(node) / "mlx5_core.sf.4").mkdir()
    with pytest.raises(RetryableError, match="device gpu-0: it has 1 subfunctions since it was published"):
        node.preparer.prepare(claim("a", "gpu-0"))


def rdma(node: SimulatedNode, **identity: str) -> Path:
    """A NIC that claims have for its RDMA, and whose interface stays on the host; returns the interface's folder."""
    about = {"rdma": "mlx5_0", "ifname": "ens1", **identity}
    node.devices["gpu-0"] = msgspec.structs.replace(node.devices["gpu-0"], family="nic", identity=about)
    return node.add_interface("ens1")


@pytest.mark.parametrize("identity", [{}, {"host_use": "the host uses it: ens1 has the address 10.1.2.3/24"}])
def test_a_nic_that_the_host_has_come_to_use_is_refused(node: SimulatedNode, identity: dict[str, str]) -> None:
    """A bond made of it a second after the inventory: with RoCE LAG its RDMA device is that of the bond."""
    interface = rdma(node, **identity)
    (interface / "master").symlink_to("../bond0")
    with pytest.raises(RetryableError, match="device gpu-0: the host uses it: ens1 is a port of bond0; end that use"):
        node.preparer.prepare(claim("a", "gpu-0"))
    assert node.ledger.entries() == []
    (interface / "master").unlink()
    assert node.preparer.prepare(claim("a", "gpu-0"))
    (interface / "master").symlink_to("../bond0")
    node.crash_and_restart()
    assert node.preparer.prepare(claim("a", "gpu-0")), "its container starts again"


def test_a_nic_whose_interface_is_elsewhere_is_refused(node: SimulatedNode) -> None:
    rdma(node).rmdir()
    with pytest.raises(RetryableError, match="it is not known whether the host uses ens1: it is not among"):
        node.preparer.prepare(claim("a", "gpu-0"))


def test_a_nic_that_a_rule_permits_is_prepared_while_the_host_uses_it(node: SimulatedNode) -> None:
    interface = rdma(node, host_use="the host uses it: ens1 is a port of bond0", rule="host_interfaces")
    (interface / "master").symlink_to("../bond0")
    assert node.preparer.prepare(claim("a", "gpu-0"))


def test_an_adapter_that_is_published_with_its_virtual_functions_is_claimed(node: SimulatedNode) -> None:
    (adapter(node, sriovVfs=1) / "virtfn0").symlink_to("../0000:00:01.0")
    assert node.preparer.prepare(claim("a", "gpu-0"))
