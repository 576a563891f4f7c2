"""A NIC of the host that the hook moves between real network namespaces, and what a pod and the host see of it.

The kernel deletes a virtual interface with its network; a NIC's comes back to the host, which `Nic.come_back` does.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyroute2.netns import setns

from deadlines import a_minute
from device_setup.test_net import ADDRESS, given, nic, want
from dra_agent.agent.hook_server import HookServer
from dra_agent.device_setup.net import NicSetup
from dra_agent.device_setup.net.mover import TASK
from dra_agent.device_setup.sysfs_writer import RealSysfsWriter
from dra_agent.host import Host
from dra_agent.prepare.setup import SetupOutcome
from eventually import eventually

NET = Path("/sys/class/net")
# Other processes that run these tests share the host's network, so every name and address there is this one's own.
IN_POD = f"net{os.getpid()}"
ON_HOST = f"dra{os.getpid()}a"
PEER = f"dra{os.getpid()}b"
HARDWARE_ADDRESS = ":".join(f"{byte:02x}" for byte in (0x02, 0xFC, *os.getpid().to_bytes(4, "big")))


def ip(*words: str, inside: int | None = None, check: bool = True) -> str:
    entered = ["nsenter", f"--net=/proc/{inside}/ns/net"] if inside is not None else []
    done = subprocess.run([*entered, "ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0 or not check, f"ip {' '.join(words)}: {done.stderr}"
    return done.stdout


def possible() -> bool:
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "nsenter", "unshare"))):
        return False
    return subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode == 0


class Nic:
    """A NIC of the host, made of one end of a veth pair, and an agent that has prepared it for claim `a`."""

    def __init__(self, root: Path) -> None:
        self.name, self.peer, self.hardware = ON_HOST, PEER, HARDWARE_ADDRESS
        self.root = root
        self.host = Host(sysfs=root / "sys")
        device = root / "sys/bus/pci/devices" / ADDRESS / "net"
        device.mkdir(parents=True)
        (root / "sys/class").mkdir()
        (root / "sys/class/net").symlink_to(NET)
        ip("link", "add", self.name, "address", self.hardware, "type", "veth", "peer", "name", self.peer)
        ip("link", "set", self.peer, "up")
        ip("link", "set", self.name, "up")
        ip("address", "add", "192.0.2.7/24", "dev", self.name)
        self.agent = self.new_agent()

    def new_agent(self) -> NicSetup:
        """An agent that knows of the earlier ones what they left on disk."""
        folder = self.root / "host"
        kernel = RealSysfsWriter(self.host.sysfs)
        agent = NicSetup(self.host, self.root / "state", folder, kernel=kernel, return_timeout_s=0.3)
        # The device's folder in /sys, which for a NIC shows the host's interfaces alone.
        agent.interfaces.of = lambda address: [name for name in (self.name, IN_POD) if (NET / name).exists()]  # type: ignore[method-assign]
        return agent

    def prepare(self, **interface: Any) -> SetupOutcome:
        return self.agent.set_up(
            "a", given(nic(ifname=self.name, host_address="allowed")), want(**interface), None, a_minute()
        )

    def hook(self, outcome: SetupOutcome, pid: int) -> subprocess.CompletedProcess[str]:
        """What a runtime does before it starts a container whose first process this is."""
        (hook,) = outcome.edits["nic-0"].hooks
        state = json.dumps({"ociVersion": "1.2.0", "id": "c", "status": "created", "pid": pid})
        command = [hook.path, *hook.args[1:]]
        return subprocess.run(command, input=state, capture_output=True, text=True, timeout=120, check=False)

    def come_back(self, pod: int, name: str = IN_POD) -> None:
        ip("link", "set", name, "netns", str(os.getpid()), inside=pod)

    def note(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.root / "state/net/nic-0.json").read_text())
        return found

    def remove(self) -> None:
        for name in (self.name, self.peer, IN_POD):
            ip("link", "delete", name, check=False)


def links(pod: int) -> dict[str, Any]:
    return {link["ifname"]: link for link in json.loads(ip("-json", "address", inside=pod))}


def addresses(link: dict[str, Any]) -> list[str]:
    found = [item for item in link["addr_info"] if item["scope"] == "global"]
    return [f"{item['local']}/{item['prefixlen']}" for item in found]


@contextmanager
def network() -> Iterator[int]:
    """A pod's network; gives a process in it."""
    process = subprocess.Popen(["unshare", "--net", "sleep", "600"])
    try:
        own = Path("/proc/self/ns/net").readlink()
        eventually(lambda: Path(f"/proc/{process.pid}/ns/net").readlink() != own, "no network namespace was made")
        yield process.pid
    finally:
        process.kill()
        process.wait()


@contextmanager
def answered(agent: NicSetup, path: Path | None = None) -> Iterator[None]:
    """Answer hooks as the agent does, on its socket or at another path."""
    loop = asyncio.new_event_loop()
    hooks = HookServer(path or agent.hook.socket, {TASK: agent.mover.move})
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(hooks.start(), loop).result(60)
    try:
        yield
    finally:
        asyncio.run_coroutine_threadsafe(hooks.stop(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


def described(pod: int, name: str) -> dict[str, Any]:
    """Return the kernel's description of an interface, without its numbers, counters and carrier.

    The kernel updates the state of the carrier some time after the link.
    """
    found: dict[str, Any]
    (found,) = json.loads(ip("-json", "-details", "link", "show", "dev", name, inside=pod))
    drop = ("ifindex", "link", "link_index", "link_netnsid", "operstate", "group_ifindex")
    found["flags"] = [flag for flag in found["flags"] if flag not in ("LOWER_UP", "NO-CARRIER")]
    return {key: value for key, value in found.items() if key not in drop}


@contextmanager
def in_network(pid: int) -> Iterator[None]:
    """Run in a pod's network, on another thread."""
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    there = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        setns(there)
        yield
    finally:
        setns(own)
        os.close(own)
        os.close(there)


@pytest.fixture
def the_nic() -> Iterator[Nic]:
    with tempfile.TemporaryDirectory(prefix="mov-") as path:
        made = Nic(Path(path))
        try:
            yield made
        finally:
            made.remove()


@pytest.fixture
def pod() -> Iterator[int]:
    with network() as pid:
        yield pid


@pytest.fixture
def other_pod() -> Iterator[int]:
    with network() as pid:
        yield pid
