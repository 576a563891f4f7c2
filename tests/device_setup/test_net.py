"""A NIC's interface: the hook that containers get, the MTU, and everything put back; once on a real kernel."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deadlines import a_minute
from dra_agent.claim import ClaimDevice
from dra_agent.claimable.network import HostNetwork
from dra_agent.device_setup import rtnetlink
from dra_agent.device_setup.link import raw, shown, text
from dra_agent.device_setup.net import NicConfig, NicSetup
from dra_agent.device_setup.net import setup as net
from dra_agent.device_setup.net.interfaces import Interfaces
from dra_agent.device_setup.rtnetlink import TIMEOUT_S as QUERY_TIMEOUT_S
from dra_agent.device_setup.sysfs_writer import RealSysfsWriter
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.host import Host
from dra_agent.inventory.model import Device, DeviceNode
from dra_agent.prepare.config import ConfigurationError, decode
from dra_agent.prepare.setup import API_VERSION, DeviceSetup, SetupDevice, UnsuitableError

ADDRESS = "0000:31:00.0"


@pytest.fixture(autouse=True)
def every_test_has_time(no_haste: None) -> None:
    """A machine that runs many tests takes seconds to start a process."""


def want(**interface: Any) -> NicConfig:
    return msgspec.convert({"interface": interface}, NicConfig)


def nic(name: str = "nic-0", ifname: str = "ens1", address: str = ADDRESS, **more: str) -> Device:
    return Device(name, "nic", "mellanox", address, {}, identity={"ifname": ifname, **more})


def given(device: Device) -> list[SetupDevice]:
    return [SetupDevice(ClaimDevice("n/nic", device.name, ("nic",)), device)]


class Tree:
    """A /sys with interfaces: what the kernel would do with them is done by `move` and `come_back`."""

    def __init__(self, root: Path) -> None:
        self.host = Host(sysfs=root / "sys", dev=root / "dev", proc=root / "proc")
        self.state = root / "state"
        self.add(ADDRESS, "ens1")

    def add(self, address: str, name: str, mtu: int = 1500, flags: str = "0x1003") -> None:
        (self.host.sysfs / "bus/pci/devices" / address / "net" / name).mkdir(parents=True)
        folder = self.host.sysfs / "class/net" / name
        folder.mkdir(parents=True)
        (folder / "mtu").write_text(f"{mtu}\n")
        (folder / "flags").write_text(f"{flags}\n")
        (folder / "address").write_text("02:fc:00:00:00:31\n")

    def remove(self, address: str, name: str) -> None:
        shutil.rmtree(self.host.sysfs / "bus/pci/devices" / address / "net" / name)
        shutil.rmtree(self.host.sysfs / "class/net" / name)

    def shown(self, name: str) -> tuple[int, bool]:
        folder = self.host.sysfs / "class/net" / name
        return int((folder / "mtu").read_text()), bool(int((folder / "flags").read_text(), 16) & 1)

    def note(self, **fields: Any) -> None:
        """Record what the mover does, or another boot."""
        path = self.state / "net/nic-0.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    def host_sets(self, name: str, mtu: int, flags: str) -> None:
        folder = self.host.sysfs / "class/net" / name
        (folder / "mtu").write_text(f"{mtu}\n")
        (folder / "flags").write_text(f"{flags}\n")

    def agent(self) -> NicSetup:
        kernel = RealSysfsWriter(self.host.sysfs)
        return NicSetup(self.host, self.state, self.state / "host", kernel=kernel, return_timeout_s=0.2)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_an_mtu_is_set_and_put_back(tree: Tree) -> None:
    outcome = tree.agent().set_up("a", given(nic()), want(mtu=9000), None, a_minute())
    assert tree.shown("ens1") == (9000, True) and outcome.edits == {}
    again = tree.agent().set_up("a", given(nic()), want(mtu=9000), outcome.record, a_minute())
    assert again == outcome, "an agent that starts again knows how it was"
    tree.agent().tear_down("a", ["nic-0"], outcome.record, a_minute())
    assert tree.shown("ens1") == (1500, True) and list((tree.state / "net").iterdir()) == []
    tree.agent().tear_down("a", ["nic-0"], outcome.record, a_minute())


def test_a_claim_that_changes_nothing_leaves_the_interface_to_the_host(tree: Tree) -> None:
    agent = tree.agent()
    outcome = agent.set_up("a", given(nic()), want(), None, a_minute())
    assert agent.noted("a") == []
    tree.host_sets("ens1", 4200, "0x1002")
    agent.tear_down("a", ["nic-0"], outcome.record, a_minute())
    assert tree.shown("ens1") == (4200, False)


@pytest.mark.parametrize("interface", [{"mtu": 9000}, {"name": "net1", "mtu": 9000}])
def test_an_interface_that_did_not_move_keeps_what_the_host_has_set_since(
    tree: Tree, interface: dict[str, Any]
) -> None:
    agent = tree.agent()
    outcome = agent.set_up("a", given(nic()), want(**interface), None, a_minute())
    tree.host_sets("ens1", 4200, "0x1002")
    agent.tear_down("a", ["nic-0"], outcome.record, a_minute())
    assert tree.shown("ens1") == (4200, False)


def test_an_interface_that_the_host_has_come_to_use_keeps_its_mtu(tree: Tree) -> None:
    """The host's bond sends with it; the host cannot tell whose value it is."""
    agent = tree.agent()
    outcome = agent.set_up("a", given(nic()), want(mtu=9000), None, a_minute())
    (tree.host.sysfs / "class/net/ens1/master").symlink_to("../bond0")
    agent.tear_down("a", ["nic-0"], outcome.record, a_minute())
    assert tree.shown("ens1") == (9000, True) and agent.noted("a") == []


def test_an_interface_whose_use_cannot_be_known_keeps_its_mtu(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The host has more routes than the agent reads by now: a retry would find the same, for the life of the pod."""
    agent = tree.agent()
    outcome = agent.set_up("a", given(nic()), want(mtu=9000), None, a_minute())
    monkeypatch.setattr(agent, "_network", HostNetwork(tree.host, max_routes=2))
    (tree.host.proc / "net").mkdir(parents=True, exist_ok=True)
    line = "eth9\t{:08X}\t0100000A\t0003\t0\t0\t0\tFFFFFFFF\t0\t0\t0\n"
    lines = [line.format(number) for number in range(1, 5)]
    (tree.host.proc / "net/route").write_text("".join(["Iface\tDestination\tGateway\n", *lines]))
    agent.tear_down("a", ["nic-0"], outcome.record, a_minute())
    assert tree.shown("ens1") == (9000, True) and agent.noted("a") == []
    (warning,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "it is not known whether the host uses ens1" in vars(warning)["reason"]


def test_a_new_name_of_the_host_stays(tree: Tree) -> None:
    agent = tree.agent()
    outcome = agent.set_up("a", given(nic()), want(mtu=9000), None, a_minute())
    tree.remove(ADDRESS, "ens1")
    tree.add(ADDRESS, "lan0", mtu=9000)
    agent.tear_down("a", ["nic-0"], outcome.record, a_minute())
    assert tree.shown("lan0") == (1500, True)
    assert agent.interfaces.of(ADDRESS) == ["lan0"]


@pytest.mark.parametrize("interface", [{"mtu": 9000}, {"name": "net1", "mtu": 9000}])
def test_after_a_restart_of_the_host_an_interface_is_as_the_host_configures_it(
    tree: Tree, interface: dict[str, Any]
) -> None:
    agent = tree.agent()
    outcome = agent.set_up("a", given(nic()), want(**interface), None, a_minute())
    tree.note(boot_id="11111111-2222-3333-4444-555555555555", network="net:[4026532281]")
    tree.host_sets("ens1", 9000, "0x1002")
    agent.tear_down("a", ["nic-0"], outcome.record, a_minute())
    assert tree.shown("ens1") == (9000, False) and agent.noted("a") == []


def test_a_boot_that_an_earlier_agent_recorded_counts(tree: Tree) -> None:
    """It recorded the boot with the properties of the link."""
    agent = tree.agent()
    outcome = agent.set_up("a", given(nic()), want(name="net1"), None, a_minute())
    link = {"hardware_address": "02:fc:00:00:00:31", "boot_id": "11111111-2222-3333-4444-555555555555"}
    tree.note(boot_id="", link=link, network="net:[4026532281]")
    tree.host_sets("ens1", 9000, "0x1002")
    agent.tear_down("a", ["nic-0"], outcome.record, a_minute())
    assert tree.shown("ens1") == (9000, False) and agent.noted("a") == []


def test_a_claim_that_is_prepared_again_after_a_restart_records_the_interface_again(tree: Tree) -> None:
    agent = tree.agent()
    outcome = agent.set_up("a", given(nic()), want(mtu=9000), None, a_minute())
    tree.note(boot_id="11111111-2222-3333-4444-555555555555")
    tree.host_sets("ens1", 4200, "0x1003")
    agent.set_up("a", given(nic()), want(mtu=9000), outcome.record, a_minute())
    assert tree.shown("ens1") == (9000, True)
    agent.tear_down("a", ["nic-0"], outcome.record, a_minute())
    assert tree.shown("ens1") == (4200, True)


@pytest.mark.parametrize("interface", [{"mtu": 9000}, {"name": "net1"}])
def test_an_interface_of_another_device_is_not_changed(tree: Tree, interface: dict[str, Any]) -> None:
    """The host has renamed interfaces since the inventory was read."""
    tree.remove(ADDRESS, "ens1")
    tree.add("0000:32:00.0", "ens1")
    tree.add(ADDRESS, "ens2")
    with pytest.raises(
        RetryableError, match="^device nic-0: its interface ens1 is not on the host; the agent retries$"
    ):
        tree.agent().set_up("a", given(nic()), want(**interface), None, a_minute())
    assert tree.shown("ens1") == (1500, True) and tree.agent().noted("a") == []


def test_containers_get_the_hook_also_when_it_has_moved_the_interface(tree: Tree) -> None:
    agent = tree.agent()
    outcome = agent.set_up("a", given(nic()), want(name="net1", mtu=9000), None, a_minute())
    (hook,) = outcome.edits["nic-0"].hooks
    assert hook.hook_name == "createRuntime" and Path(hook.path).stat().st_mode & 0o777 == 0o755
    about = ("--claim", "a", "--key", "nic-0", "--task", "interface")
    assert hook.args[1:] == ("--socket", str(tree.state / "host/hooks.sock"), *about)
    assert outcome.edits["nic-0"].net_devices == ()
    assert outcome.edits["nic-0"].env == ("DRA_AGENT_DEVICE_NIC_0_IFNAME=net1",)
    tree.note(network="net:[4026532281]")
    tree.remove(ADDRESS, "ens1")
    moved = Device("nic-0", "nic", "mellanox", ADDRESS, {})  # as the inventory has it now
    assert tree.agent().set_up("a", given(moved), want(name="net1", mtu=9000), outcome.record, a_minute()) == outcome
    with pytest.raises(RetryableError, match="ens1 has not returned from the container; stop the processes"):
        agent.tear_down("a", ["nic-0"], outcome.record, a_minute())
    tree.add(ADDRESS, "ens1", mtu=9000, flags="0x1002")  # the kernel brings it back switched off
    agent.tear_down("a", ["nic-0"], outcome.record, a_minute())
    assert tree.shown("ens1") == (1500, True)


def test_an_mtu_that_the_adapter_does_not_take(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = tree.agent()

    def refuse(name: str, mtu: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")  # as dev_set_mtu answers above max_mtu

    monkeypatch.setattr(agent.interfaces, "set_mtu", refuse)
    with pytest.raises(
        PermanentError, match="interface.mtu: ens1 does not accept 9999: Invalid argument; request a smaller MTU"
    ):
        agent.set_up("a", given(nic()), want(mtu=9999), None, a_minute())
    agent.roll_back("a", ["nic-0"], want(mtu=9999), a_minute())
    assert tree.shown("ens1") == (1500, True)


def test_an_interface_that_cannot_be_read_or_restored_is_an_error(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    agent, mtu = tree.agent(), tree.host.sysfs / "class/net/ens1/mtu"
    mtu.rename(mtu.with_name("hidden"))
    with pytest.raises(RetryableError, match="ens1 cannot be read") as unread:
        agent.set_up("a", given(nic()), want(mtu=9000), None, a_minute())
    assert unread.value.where == "device nic-0"
    mtu.with_name("hidden").rename(mtu)
    agent.set_up("a", given(nic()), want(mtu=9000), None, a_minute())

    def refuse(name: str, mtu: int) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    with monkeypatch.context() as patch:
        patch.setattr(agent.interfaces, "set_mtu", refuse)
        with pytest.raises(RetryableError, match="ens1 cannot be restored: Device or resource busy"):
            agent.tear_down("a", ["nic-0"], None, a_minute())
    agent.tear_down("a", ["nic-0"], None, a_minute())
    assert tree.shown("ens1") == (1500, True)


def test_a_nic_that_is_gone_holds_no_claim_up(tree: Tree) -> None:
    agent = tree.agent()
    agent.set_up("a", given(nic()), want(name="net1"), None, a_minute())
    shutil.rmtree(tree.host.sysfs / "bus/pci/devices" / ADDRESS)
    agent.tear_down("a", ["nic-0"], None, a_minute())
    assert list((tree.state / "net").iterdir()) == []


def test_an_interface_with_an_unknown_name_is_found_by_its_port(tree: Tree) -> None:
    """A container has renamed it, and the device has another one."""
    for number, name in enumerate(("ens1", "ens1d1")):
        if name != "ens1":
            tree.add(ADDRESS, name)
        for attribute in ("dev_id", "dev_port"):
            (tree.host.sysfs / "class/net" / name / attribute).write_text(f"{number}\n")
    agent = tree.agent()
    agent.set_up("a", given(nic()), want(name="net1"), None, a_minute())
    tree.note(network="net:[4026532281]")
    tree.remove(ADDRESS, "ens1")
    with pytest.raises(RetryableError, match="ens1 has not returned from the container"):
        agent.tear_down("a", ["nic-0"], None, a_minute())
    renamed = os.fsdecode(b"\xff\xfe")
    tree.add(ADDRESS, renamed)
    for attribute in ("dev_id", "dev_port"):
        (tree.host.sysfs / "class/net" / renamed / attribute).write_text("0\n")
    port = agent.interfaces.port(renamed)
    assert agent.interfaces.find(ADDRESS, port, "ens1", "net1") == renamed
    assert agent.interfaces.find(ADDRESS, agent.interfaces.port("ens1d1"), "ens1", "net1") == "ens1d1"
    assert agent.interfaces.find(ADDRESS, "", "ens1", "net1") is None, "recorded by an earlier agent: it may be either"


@pytest.mark.parametrize(
    ("entry", "user"),
    [
        ("master", "ens1 is a port of bond0"),
        ("upper_ens1.5", r"ens1 is the lower device of the interface ens1\.5"),
        (b"upper_\xff", "ens1 is the lower device of the interface"),
    ],
)
def test_an_interface_that_the_host_uses_is_refused(tree: Tree, entry: str | bytes, user: str) -> None:
    (tree.host.sysfs / "class/net/ens1" / os.fsdecode(entry)).symlink_to("../bond0")
    for interface in ({"mtu": 9000}, {"name": "net1"}):
        with pytest.raises(RetryableError, match=f"^device nic-0: interface: the host uses it: {user}") as caught:
            tree.agent().set_up("a", given(nic()), want(**interface), None, a_minute())
        str(caught.value).encode()
    assert tree.shown("ens1") == (1500, True) and tree.agent().noted("a") == []


def with_address(tree: Tree) -> None:
    """A rail of RoCE, as most GPU hosts have it."""
    folder = tree.host.proc / "net"
    folder.mkdir(parents=True)
    (folder / "if_inet6").write_text("20010db8000000000000000000000007 02 40 00 80     ens1\n")


@pytest.mark.parametrize("interface", [{"mtu": 9000}, {"name": "net1"}])
def test_an_interface_with_an_address_is_changed_only_if_a_rule_allows_it(
    tree: Tree, interface: dict[str, Any]
) -> None:
    with_address(tree)
    with pytest.raises(RetryableError, match="the host uses it: ens1 has the address 2001:db8::7/64"):
        tree.agent().set_up("a", given(nic()), want(**interface), None, a_minute())
    assert tree.shown("ens1") == (1500, True) and tree.agent().noted("a") == []
    tree.agent().set_up("a", given(nic(host_address="allowed")), want(**interface), None, a_minute())
    assert tree.agent().noted("a") == ["nic-0"]


def test_an_mtu_that_would_remove_the_hosts_addresses_is_refused(tree: Tree) -> None:
    """Below 1280 bytes the kernel has no IPv6 on an interface, and does not restore its addresses afterwards."""
    allowed = nic(host_address="allowed")
    tree.agent().set_up("a", given(allowed), want(mtu=1279), None, a_minute())
    tree.agent().tear_down("a", ["nic-0"], None, a_minute())
    with_address(tree)
    with pytest.raises(PermanentError, match="^device nic-0: interface.mtu: 1279 .*: ens1 has the address 2001:db8::7"):
        tree.agent().set_up("a", given(allowed), want(mtu=1279), None, a_minute())
    assert tree.shown("ens1") == (1500, True) and tree.agent().noted("a") == []
    tree.agent().set_up("a", given(allowed), want(mtu=1280), None, a_minute())


def test_an_interface_whose_rdma_device_a_process_has_open_is_not_moved(tree: Tree) -> None:
    """The kernel removes the GIDs of an interface that leaves the host, and the process uses them."""
    name = "nic-0000-31-00-0"
    verbs = tree.host.dev_path("/dev/infiniband/uverbs3")
    verbs.parent.mkdir(parents=True)
    verbs.touch()
    process = tree.host.proc / "4711"
    (process / "fd").mkdir(parents=True)
    (process / "comm").write_text("storage\n")
    (process / "fd/3").symlink_to(verbs)
    device = msgspec.structs.replace(nic(name), nodes=(DeviceNode("/dev/infiniband/uverbs3", str(verbs), "uverbs"),))
    agent = tree.agent()
    agent.set_up("a", given(device), want(mtu=9000), None, a_minute())
    agent.tear_down("a", [name], None, a_minute())
    with pytest.raises(
        RetryableError, match=r"^device .*: interface.name: storage \(process 4711\) has /dev/infiniband/uverbs3 open"
    ):
        agent.set_up("a", given(device), want(name="net1"), None, a_minute())
    assert agent.noted("a") == []
    (process / "fd/3").unlink()
    outcome = agent.set_up("a", given(device), want(name="net1"), None, a_minute())
    # From here on it is a container of the claim itself that has it open.
    (process / "fd/3").symlink_to(verbs)
    assert agent.set_up("a", given(device), want(name="net1"), outcome.record, a_minute()) == outcome


def test_a_service_that_may_not_search_processes_is_told_its_drop_in(tree: Tree) -> None:
    verbs = "/dev/infiniband/uverbs3"
    (tree.host.proc / "self/ns").mkdir(parents=True)
    (tree.host.proc / "self/ns/pid").symlink_to("pid:[4026532201]")
    device = msgspec.structs.replace(nic("nic-0000-31-00-0"), nodes=(DeviceNode(verbs, verbs, "uverbs"),))
    with pytest.raises(RetryableError, match=r"a process has /dev/infiniband/uverbs3 open: .*systemd/net\.conf"):
        tree.agent().set_up("a", given(device), want(name="net1"), None, a_minute())


def test_a_claim_without_changes_does_not_ask_for_the_hosts_use(tree: Tree) -> None:
    with_address(tree)
    tree.agent().check(nic(host_use="ens1 has an address"), want())
    tree.agent().set_up("a", given(nic()), want(), None, a_minute())


def test_a_network_that_cannot_be_read_changes_nothing_until_it_can(tree: Tree) -> None:
    """An earlier answer is not enough: the host may use the interface since."""
    agent = tree.agent()
    agent.set_up("a", given(nic()), want(mtu=9000), None, a_minute())
    agent.tear_down("a", ["nic-0"], None, a_minute())
    table = tree.host.proc / "net/route"
    table.parent.mkdir(parents=True)
    table.write_text("")
    table.chmod(0)
    unknown = "^device nic-0: it is not known whether the host uses ens1: .*route cannot be read; the agent retries$"
    with pytest.raises(RetryableError, match=unknown):
        agent.set_up("b", given(nic()), want(mtu=9000), None, a_minute())
    assert tree.shown("ens1") == (1500, True) and agent.noted("b") == []
    table.chmod(0o644)
    agent.set_up("b", given(nic()), want(mtu=9000), None, a_minute())
    assert tree.shown("ens1") == (9000, True)


def test_an_interface_whose_properties_are_not_read_is_not_moved(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could not be compared when it returns."""
    monkeypatch.setattr(net, "is_of_device", lambda name, hardware: True)
    monkeypatch.setattr(Interfaces, "index", lambda self, name: 1)
    monkeypatch.setattr(rtnetlink, "query", lambda request: rtnetlink.NetResult("away"))
    agent = tree.agent()
    with pytest.raises(RetryableError, match="^device nic-0: ens1 was replaced while it was read; the agent retries$"):
        agent.set_up("a", given(nic()), want(name="net1"), None, a_minute())
    assert agent.noted("a") == []


def test_a_claim_that_is_prepared_again_keeps_its_interface(tree: Tree) -> None:
    """The host has made it a port since; a container may use the RDMA device."""
    outcome = tree.agent().set_up("a", given(nic()), want(mtu=9000), None, a_minute())
    (tree.host.sysfs / "class/net/ens1/master").symlink_to("../bond0")
    assert tree.agent().set_up("a", given(nic()), want(mtu=9000), outcome.record, a_minute()) == outcome


@pytest.mark.parametrize("name", [b"net1", b"\xff\xfe", b"n\xc3\xa9t", b"\\x00", b"", bytes(range(1, 16))])
def test_names_that_are_not_text_are_kept_exactly(name: bytes) -> None:
    found = _decoded(name)
    kept = msgspec.json.decode(msgspec.json.encode(text(found)), type=str)
    assert raw(kept) == name
    assert shown(kept).isprintable() or name.decode(errors="replace") == shown(kept)


def _decoded(name: bytes) -> str | bytes:
    """As pyroute2 returns it."""
    try:
        return name.decode()
    except UnicodeDecodeError:
        return name


def test_a_partial_set_up_is_undone(tree: Tree) -> None:
    agent = tree.agent()
    tree.add("0000:32:00.0", "ens2")
    with pytest.raises(PermanentError, match="net1 would name 2 interfaces"):
        agent.set_up("a", [*given(nic()), *given(nic("nic-1", "ens2"))], want(name="net1"), None, a_minute())
    mtu = tree.host.sysfs / "class/net/ens1/mtu"
    agent.set_up("a", given(nic()), want(mtu=9000), None, a_minute())
    tree.agent().roll_back("b", ["nic-0"], want(mtu=9000), a_minute())
    assert tree.shown("ens1")[0] == 9000, "another claim's"
    tree.agent().roll_back("a", ["nic-0"], want(mtu=9000), a_minute())
    assert mtu.read_text().strip() == "1500"


@pytest.mark.parametrize(
    ("device", "interface", "message"),
    [
        (Device("nic-0", "nic", "mellanox", ADDRESS, {}, identity={"rdma": "mlx5_0"}), {}, "^interface: .* none"),
        (nic(host_use="ens1 is a port of bond0"), {"mtu": 9000}, "^interface: .* bond0, so a claim cannot change it"),
        (nic(host_use="ens1 has an address"), {"name": "net1"}, "^interface: .* an address, so a claim cannot"),
    ],
)
def test_impossible_configurations_are_refused(
    tree: Tree, device: Device, interface: dict[str, Any], message: str
) -> None:
    with pytest.raises(PermanentError, match=message):
        tree.agent().check(device, want(**interface))
    tree.agent().check(nic(), want(name="net1", mtu=9000))


def test_an_agent_that_sees_no_containers_moves_nothing(tree: Tree) -> None:
    (tree.host.proc / "self/ns").mkdir(parents=True)
    (tree.host.proc / "self/ns/pid").symlink_to("pid:[4026532281]")  # as in a pod without hostPID
    with pytest.raises(PermanentError, match="^interface.name: .* the agent is not in the host's process namespace"):
        tree.agent().check(nic(), want(name="net1"))
    tree.agent().check(nic(), want(mtu=9000))


def test_unsupported_devices_are_refused(tree: Tree) -> None:
    with pytest.raises(UnsuitableError, match="is for NICs, not for a gpu"):
        tree.agent().check(Device("gpu-0", "gpu", "amd", ADDRESS, {}), want())
    elsewhere = Host(sysfs=tree.host.sysfs, net=Path("/run/host-net"))
    with pytest.raises(PermanentError, match="^interface: the agent has its own network namespace"):
        NicSetup(elsewhere, tree.state, tree.state, kernel=RealSysfsWriter(elsewhere.sysfs)).check(
            nic(), want(mtu=9000)
        )
    setup: DeviceSetup = tree.agent()
    assert setup.default(nic()) is None


GOOD = ["net1", "rdma0", "a", "ib.8001", "x" * 15]
BAD = ["", "lo", "eth0", "all", ".", "..", "a/b", "a b", "-a", "x" * 16, "net1\n", "näh", 1]


@pytest.mark.parametrize("name", [*GOOD, *BAD])
def test_names(tree: Tree, name: object) -> None:
    value = settings(name=name)
    setups: Any = {NicSetup.kind: tree.agent()}
    if name in GOOD:
        decode(value, setups, field="")
        return
    with pytest.raises(ConfigurationError) as caught:
        decode(value, setups, field="")
    assert caught.value.field == "interface.name"


def settings(**interface: Any) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": "NicConfig", "interface": interface}


@pytest.mark.parametrize(
    ("interface", "field", "reason"),
    [
        ({"name": "net1", "addresses": ["10.0.0.5"]}, "interface.addresses[0]", "matching regex"),
        ({"name": "net1", "addresses": ["10.0.0.5/24", 5]}, "interface.addresses[1]", "expected `str`"),
        ({"name": "net1", "addresses": ["10.0.0.500/24"]}, "interface", r"addresses\[0\]: '10.0.0.500/24' does not"),
        ({"name": "net1", "addresses": ["10.0.0.5/33"]}, "interface", r"addresses\[0\]: '10.0.0.5/33' does not"),
        ({"name": "net1", "addresses": ["10.0.0.5/024"]}, "interface.addresses[0]", "matching regex"),
        (
            {"name": "net1", "addresses": ["::ffff:10.0.0.5/120"]},
            "interface",
            r"addresses\[0\]: ::ffff:\S+ is an IPv4 address in the notation of IPv6",
        ),
        (
            {"name": "net1", "routes": [{"destination": "::ffff:10.1.0.0/112"}]},
            "interface.routes[0]",
            "destination: .*notation of IPv6",
        ),
        (
            {"name": "net1", "routes": [{"destination": "fd00::/64", "gateway": "::ffff:10.1.0.1"}]},
            "interface.routes[0]",
            "gateway: .*notation of IPv6",
        ),
        ({"name": "net1", "addresses": ["10.0.0.5/24"] * 65}, "interface.addresses", "length <= 64"),
        ({"addresses": ["10.0.0.5/24"]}, "interface", "addresses: only for an interface that has a name"),
        ({"routes": [{"destination": "10.1.0.0/16"}]}, "interface", "routes: only for an interface that has a name"),
        ({"name": "net1", "routes": [{}]}, "interface.routes[0].destination", "is missing"),
        ({"name": "net1", "routes": [{"destination": "default"}]}, "interface.routes[0].destination", "matching regex"),
        (
            {"name": "net1", "routes": [{"destination": "10.1.2.3/16"}]},
            "interface.routes[0]",
            "destination: .*host bits",
        ),
        (
            {"name": "net1", "routes": [{"destination": "10.1.0.0/16", "gateway": "10.1.0.256"}]},
            "interface.routes[0]",
            "gateway: '10.1.0.256' does not",
        ),
        (
            {"name": "net1", "routes": [{"destination": "10.1.0.0/16", "gateway": "fd00::1"}]},
            "interface.routes[0]",
            "gateway: fd00::1 is not of the family",
        ),
        (
            {"name": "net1", "routes": [{"destination": "10.1.0.0/16", "via": "x"}]},
            "interface.routes[0].via",
            "no such",
        ),
    ],
)
def test_mistakes_in_addresses_and_routes(tree: Tree, interface: dict[str, Any], field: str, reason: str) -> None:
    setups: Any = {NicSetup.kind: tree.agent()}
    with pytest.raises(ConfigurationError, match=reason) as caught:
        decode(settings(**interface), setups, field="")
    assert caught.value.field == field


def test_addresses_and_routes_of_both_families(tree: Tree) -> None:
    routes = [{"destination": "0.0.0.0/0", "gateway": "10.0.0.1"}, {"destination": "fd00:1::/64"}]
    setups: Any = {NicSetup.kind: tree.agent()}
    _, decoded = decode(settings(name="net1", addresses=["10.0.0.5/24", "fd00::5/64"], routes=routes), setups, field="")
    assert isinstance(decoded, NicConfig) and decoded.interface.addresses == ("10.0.0.5/24", "fd00::5/64")
    assert [route.gateway for route in decoded.interface.routes] == ["10.0.0.1", None]


REAL = """
import json, subprocess, sys
from pathlib import Path
sys.path[:0] = {path!r}
from dra_agent.host import Host
from deadlines import a_minute
from device_setup.test_net import ADDRESS, given, nic, want
from dra_agent.device_setup import rtnetlink, sysfs_writer
from dra_agent.device_setup.net import NicSetup
from eventually import DEADLINE_S
rtnetlink.TIMEOUT_S = sysfs_writer.TIMEOUT_S = DEADLINE_S

def ip(*words): subprocess.run(["ip", *words], check=True)
subprocess.run(["mount", "-t", "sysfs", "sysfs", "/sys"], check=True)
root = Path({root!r})
(root / "sys/bus/pci/devices" / ADDRESS).mkdir(parents=True)
(root / "sys/class").mkdir()
(root / "sys/class/net").symlink_to("/sys/class/net")
(root / "sys/bus/pci/devices" / ADDRESS / "net").symlink_to("/sys/class/net")
ip("link", "add", "dra0", "mtu", "1400", "up", "type", "veth", "peer", "name", "dra1")
agent = NicSetup(Host(sysfs=root / "sys"), root / "state", root, kernel=sysfs_writer.RealSysfsWriter(root / "sys"))
def shown(name):
    folder = Path("/sys/class/net") / name
    return int((folder / "mtu").read_text()), int((folder / "flags").read_text(), 16) & 1
outcome = agent.set_up("a", given(nic(ifname="dra0")), want(name="net1", mtu=1300), None, a_minute())
assert shown("dra0") == (1400, 1), shown("dra0")  # changed in the container only
# What a runtime and the kernel do: into a network with another name, and back from it under that name, switched off.
ip("link", "set", "dra0", "down")
ip("link", "set", "dra0", "name", "net1")
note = root / "state/net/nic-0.json"
note.write_text(json.dumps(dict(json.loads(note.read_text()), network="net:[4026532281]")))
agent.tear_down("a", ["nic-0"], outcome.record, a_minute())
assert shown("dra0") == (1400, 1), shown("dra0")
assert not Path("/sys/class/net/net1").exists()
print("as it was")
"""


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2")
def test_a_real_interface_is_as_it_was_afterwards(tmp_path: Path) -> None:
    tests = Path(__file__).parents[1]
    script = REAL.format(path=[str(tests)], root=str(tmp_path))
    command = ["unshare", "--net", "--mount", sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "as it was\n", done.stderr


def test_patience_fits_into_the_kubelets() -> None:
    assert net.RETURN_TIMEOUT_S < 45 / 2


def test_addresses_that_cannot_be_read_are_not_lost(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """The move removes them, and only those that are recorded are added again."""

    def refuse(*_: object, **__: object) -> tuple[str, ...]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(net, "addresses", refuse)
    with pytest.raises(RetryableError, match="ens1 cannot be read: .*Too many open files"):
        tree.agent().set_up("a", given(nic()), want(name="net1"), None, a_minute())
    assert tree.agent().noted("a") == []
    tree.agent().set_up("a", given(nic()), want(mtu=9000), None, a_minute())  # without a move they stay


def test_a_hook_has_its_answer_before_it_gives_up() -> None:
    source = (Path(__file__).parents[2] / "rust/hook/src/agent_client.rs").read_text()
    patience = re.search(r"exchange: Duration::from_secs\((\d+)\)", source)
    assert patience and int(patience[1]) > net.RETURN_TIMEOUT_S + QUERY_TIMEOUT_S
