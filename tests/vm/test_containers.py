"""Containers of podman with the device of a claim: the GPU behind the display, and a NIC that moves into one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from eventually import eventually
from vm.machine import hardware
from vm.machine.agent import Agent, Commands, at_address, claim
from vm.machine.guest import Guest

AGENT_CONFIG = """
[inventory]
displays = ['true']
"""
# The guest's root is an overlay already, and no systemd manages its cgroups.
PODMAN = "podman --root /run/podman --runroot /run/podman-run --storage-driver vfs --cgroup-manager cgroupfs"
RUN = f"{PODMAN} run --rm --network none --log-driver none --cap-add MKNOD"
ROOTFS = "/run/rootfs"
APPLETS = "sh", "dd", "env", "ls", "mknod", "sleep"
REFUSED = "Operation not permitted"
NIC_CONFIG = "{apiVersion: dra-agent.internal/v1, kind: NicConfig, interface: {name: net1, addresses: [192.0.2.9/24]}}"
CHANGES = (
    "net1 down",
    "net1 name changed",
    "changed mtu 4000",
    "changed address 02:00:00:00:00:07",
    "changed promisc on",
    "changed txqueuelen 77",
    "changed alias pod",
    "changed up",
)
CONTAINER_TIMEOUT_S = 60.0


@pytest.fixture(scope="module", autouse=True)
def rootfs(guest: Guest) -> None:
    """A root file system for containers, with busybox alone."""
    links = "; ".join(f"ln -sf busybox {ROOTFS}/bin/{name}" for name in APPLETS)
    folders = " ".join(f"{ROOTFS}/{name}" for name in ("bin", "dev", "proc", "sys"))
    guest.run(f"mkdir -p {folders} && cp /bin/busybox {ROOTFS}/bin/busybox; {links}")


@pytest.fixture
def render_node(guest: Guest) -> str:
    """The render node of the GPU."""
    names = guest.run(f"ls /sys/bus/pci/devices/{guest.address_of(hardware.GPU)}/drm").split()
    (name,) = [name for name in names if name.startswith("renderD")]
    return f"/dev/dri/{name}"


def numbers(guest: Guest, node: str) -> str:
    """Return major and minor number of a device node."""
    major, minor = guest.run(f"stat -c '%t %T' {node}").split()
    return f"{int(major, 16)} {int(minor, 16)}"


def opened(node: str) -> str:
    """Return a command of a shell that opens a node, and reads nothing."""
    return f"dd if={node} of=/dev/null count=0"


def test_a_container_opens_the_render_node_of_its_claim_and_no_other_device(
    guest: Guest, agent: Agent, render_node: str
) -> None:
    """The device cgroup decides, not the path of a node: the container makes the nodes itself."""
    script = (
        f"{opened(render_node)} && echo claimed; mknod /dev/same c {numbers(guest, render_node)}; "
        f"{opened('/dev/same')} && echo same; mknod /dev/other c {numbers(guest, '/dev/nvme0')}; {opened('/dev/other')}"
    )
    expression = at_address(guest.address_of(hardware.GPU))
    agent.commands.write("/run/claims/run.yaml", claim("run", expression))
    command = f'{RUN} --device {{cdi}} --rootfs {ROOTFS} /bin/sh -c "{script}"'
    output = agent.commands.run(f"claim run -f /run/claims/run.yaml -- {command}", check=False)
    assert "claimed\n" in output and "same\n" in output, output
    assert f"dd: can't open '/dev/other': {REFUSED}" in output


def test_a_container_without_a_claim_does_not_open_the_gpu(guest: Guest, render_node: str) -> None:
    script = f"mknod /dev/made c {numbers(guest, render_node)}; {opened('/dev/made')}"
    output = guest.run(f'{RUN} --rootfs {ROOTFS} /bin/sh -c "{script}"', check=False)
    assert f"dd: can't open '/dev/made': {REFUSED}" in output


def test_an_interface_moves_into_a_container_and_comes_back_as_it_was(guest: Guest, agent: Agent) -> None:
    """The container changes what CAP_NET_ADMIN permits; the driver, e1000e, has settings of its own."""
    address = guest.address_of(hardware.SWITCH_NIC)
    before = interface_of(guest, address)
    settings = link_settings(guest, before)
    agent.apply("moved", at_address(address), NIC_CONFIG)
    agent.wait_for_phase("moved", "Prepared")
    flags = agent.commands.run("claim get moved -o flags").strip()
    try:
        guest.run(f'{RUN} --detach --pidfile /run/container.pid {flags} --rootfs {ROOTFS} /bin/sh -c "sleep 3600"')
        inside = guest.run("nsenter --net --target $(cat /run/container.pid) ip -o address show dev net1")
        assert "192.0.2.9/24" in inside
        assert interface_of(guest, address) == ""
        (device,) = [one for one in agent.commands.read("devices")["devices"] if one["pci_address"] == address]
        assert device["held_by"] == ["default/moved"]
        changes = "; ".join(f"ip link set {change}" for change in CHANGES)
        guest.run(f"nsenter --net --target $(cat /run/container.pid) sh -e -c '{changes}'")
    finally:
        guest.run("kill -KILL $(cat /run/container.pid)")
    eventually(lambda: interface_of(guest, address), within=guest.patience_s(CONTAINER_TIMEOUT_S))
    agent.delete("moved")
    assert interface_of(guest, address) == before
    assert link_settings(guest, before) == settings


def test_an_interface_in_another_network_namespace_is_excluded_until_it_is_back(
    guest: Guest, commands: Commands
) -> None:
    """Moved by the host's administrator."""
    address = guest.address_of(hardware.SWITCH_NIC)
    name = interface_of(guest, address)
    guest.run(f"ip netns add other && ip link set {name} netns other")
    try:
        (exclusion,) = [one for one in commands.read("devices")["excluded"] if one["pci_address"] == address]
        assert exclusion["code"] == "no-interface"
    finally:
        guest.run("ip netns delete other")
    eventually(lambda: interface_of(guest, address) == name, within=guest.patience_s(CONTAINER_TIMEOUT_S))
    assert address in [device["pci_address"] for device in commands.read("devices")["devices"]]


def link_settings(guest: Guest, name: str) -> dict[str, Any]:
    """Return what `ip` shows of a link; a move can change its number."""
    (shown,) = json.loads(guest.run(f"ip -details -json link show dev {name}"))
    return {key: value for key, value in shown.items() if key != "ifindex"}


def interface_of(guest: Guest, address: str) -> str:
    """Return the interface of a NIC in the guest's network namespace; empty if it has none there."""
    return guest.run(f"ls /sys/bus/pci/devices/{address}/net 2> /dev/null", check=False).strip()
