from __future__ import annotations

import asyncio
import json
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tiers
from deadlines import a_minute
from dra_agent.claim import ClaimDevice
from dra_agent.control_socket.server import Server
from dra_agent.device_setup.container_hook import BUILT_BINARY, ContainerHook
from dra_agent.device_setup.shares.limiter import DriverLimit, Limiter, LimitRequest
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.host import Host
from dra_agent.inventory.api import Attribute, Capacity
from dra_agent.inventory.model import Device
from dra_agent.prepare.setup import SetupDevice

REGION = "drm/0000:03:00.0/vram0"
SLICE = "kubepods.slice/pod.slice"
SCOPE = f"{SLICE}/cri-1.scope"


class Driver(DriverLimit):
    """Stands for NVML: takes note of what is to be limited, or refuses."""

    def __init__(self) -> None:
        self.set_: list[tuple[str, str, Path, int]] = []
        self.refuses = ""

    def set(self, uuid: str, address: str, cgroup: Path, amount: int) -> None:
        if self.refuses:
            raise RetryableError(self.refuses, where="NVML")
        self.set_.append((uuid, address, cgroup, amount))


class Tree:
    """A host with a cgroup hierarchy of files, and a process in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.root = path / "sys/fs/cgroup"
        self.proc = path / "proc"
        self.put_cgroup("0::/" + SCOPE)
        self.container = self.root / SCOPE
        self.container.mkdir(parents=True)
        (self.root / "cgroup.controllers").write_text("cpu dmem\n")
        for folder in (self.root, self.root / "kubepods.slice", self.root / SLICE):
            (folder / "cgroup.subtree_control").write_text("")
        (self.container / "dmem.max").write_text("")
        self.host = Host(path / "sys", path / "dev", path / "proc")
        self.driver = Driver()
        self.limiter = Limiter(self.host, path / "state", path / "host", self.driver)

    def put_cgroup(self, text: str) -> None:
        (self.proc / "41").mkdir(parents=True, exist_ok=True)
        (self.proc / "41/cgroup").write_text(f"{text}\n")

    def hook(self, *arguments: str, state: Any = None) -> subprocess.CompletedProcess[str]:
        given = {"ociVersion": "1.2.0", "id": "c", "status": "created", "pid": 41} if state is None else state
        return subprocess.run(
            [BUILT_BINARY, *arguments, "--proc", str(self.proc)],
            input=given if isinstance(given, str) else json.dumps(given),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


@pytest.fixture
def tree() -> Iterator[Tree]:
    with tempfile.TemporaryDirectory(prefix="lim-") as path:
        yield Tree(Path(path))


def share(enforcement: str, **identity: str) -> SetupDevice:
    device = Device(
        "gpu-a",
        "gpu",
        "nvidia",
        "0000:03:00.0",
        {"memoryEnforcement": Attribute.of(enforcement)},
        {"memory": Capacity(value="80Gi")},
        allow_multiple_allocations=True,
        identity=identity,
    )
    return SetupDevice(
        ClaimDevice("n/gpu", device.name, ("gpu",), "share-1", consumed_capacity={"memory": "4Gi"}), device
    )


def arguments(edits: Any) -> list[str]:
    (hook,) = edits.hooks
    assert hook.hook_name == "createRuntime"
    return list(hook.args[1:])


def test_the_kernel_gets_a_region_and_its_limit(tree: Tree) -> None:
    edits = tree.limiter.grant("uid-1", share("dmem", dmem=REGION), "dmem", 4 << 30, a_minute())
    done = tree.hook(*arguments(edits))
    assert (done.returncode, done.stderr) == (0, "")
    assert (tree.container / "dmem.max").read_text() == f"{REGION} {4 << 30}\n"
    for folder in (tree.root, tree.root / "kubepods.slice", tree.root / SLICE):
        assert (folder / "cgroup.subtree_control").read_text() == "+dmem\n"
    assert (tree.path / "host/dra-agent-hook").stat().st_mode & 0o777 == 0o755


def test_controllers_that_are_given_already_are_left_alone(tree: Tree) -> None:
    for folder in (tree.root, tree.root / "kubepods.slice", tree.root / SLICE):
        (folder / "cgroup.subtree_control").write_text("cpu dmem\n")
    edits = tree.limiter.grant("uid-1", share("dmem", dmem=REGION), "dmem", 4 << 30, a_minute())
    assert tree.hook(*arguments(edits)).returncode == 0
    assert (tree.root / "cgroup.subtree_control").read_text() == "cpu dmem\n"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda tree: (tree.container / "dmem.max").unlink(), "dmem.max: No such file"),
        (lambda tree: (tree.root / SLICE / "cgroup.subtree_control").unlink(), "cgroup.subtree_control: No such file"),
        (lambda tree: tree.put_cgroup("0::/"), "no separate cgroup"),
        (lambda tree: tree.put_cgroup("4:memory:/x"), "unified hierarchy"),
        (lambda tree: tree.put_cgroup("0::/../../etc"), "not a path of a cgroup"),
        (lambda tree: (tree.proc / "41/cgroup").unlink(), "No such file"),
    ],
)
def test_a_container_without_a_limit_does_not_start_and_the_error_is_one_line(
    tree: Tree, damage: Any, message: str
) -> None:
    edits = tree.limiter.grant("uid-1", share("dmem", dmem=REGION), "dmem", 4 << 30, a_minute())
    damage(tree)
    done = tree.hook(*arguments(edits))
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("dra-agent-hook: the container's share of a GPU cannot be limited: ")
    assert message in line


def test_another_limit_than_requested_is_a_failure(tree: Tree) -> None:
    # A file that keeps what it has, as a kernel that rounds up would.
    limit = tree.container / "dmem.max"
    limit.unlink()
    limit.symlink_to("/dev/null")
    edits = tree.limiter.grant("uid-1", share("dmem", dmem=REGION), "dmem", 4 << 30, a_minute())
    assert "is not limited" in tree.hook(*arguments(edits)).stderr


@pytest.mark.parametrize("state", [{}, {"pid": 0}, {"pid": "41"}, [], {"pid": 42}])
def test_a_state_that_names_no_process_is_a_failure(tree: Tree, state: Any) -> None:
    edits = tree.limiter.grant("uid-1", share("dmem", dmem=REGION), "dmem", 4 << 30, a_minute())
    assert tree.hook(*arguments(edits), state=state).returncode == 1
    assert (tree.container / "dmem.max").read_text() == ""


@pytest.mark.parametrize(
    "state",
    [
        '{"pid": 41, "pid": 42}',
        '{"pid": 42, "p\\u0069d": 41}',
        '{"pid": 41, "annotations": {"a": "1", "a": "2"}}',
        '{"pid": 41, "annotations": {}, "annotations": {"pid": 42}}',
        '{"pid": 41, "annotations": {"a": {"b": [{"c": 1, "c": 1}]}}}',
    ],
)
def test_a_state_with_a_name_twice_is_a_failure(tree: Tree, state: str) -> None:
    """Readers differ in which of the two they take."""
    edits = tree.limiter.grant("uid-1", share("dmem", dmem=REGION), "dmem", 4 << 30, a_minute())
    done = tree.hook(*arguments(edits), state=state)
    assert done.returncode == 1 and "appears twice" in done.stderr
    assert (tree.container / "dmem.max").read_text() == ""


@contextmanager
def answered(limiter: Limiter, socket: Path) -> Iterator[None]:
    """Answer hooks as the agent does."""
    loop = asyncio.new_event_loop()

    async def apply(line: bytes) -> bool:
        return await asyncio.to_thread(limiter.apply, line)

    server = Server(socket, apply, line_limit=1 << 14)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.start(), loop).result(60)
    try:
        yield
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


def test_the_agent_sets_the_limit_in_the_driver_for_the_hook(tree: Tree) -> None:
    edits = tree.limiter.grant("uid-1", share("nvml-cgroup", uuid="GPU-1"), "nvml-cgroup", 4 << 30, a_minute())
    with answered(tree.limiter, tree.path / "host/hooks.sock"):
        for _ in range(2):
            done = tree.hook(*arguments(edits))
            assert (done.returncode, done.stderr) == (0, "")
    assert tree.driver.set_ == [("GPU-1", "0000:03:00.0", tree.container, 4 << 30)] * 2
    kept = json.loads((tree.path / "state/limits/uid-1.json").read_text())
    assert kept["gpu-a/share-1"]["cgroups"] == [SCOPE]
    tree.limiter.revoke("uid-1", a_minute())
    assert not (tree.path / "state/limits/uid-1.json").exists()


def test_cgroups_of_containers_that_have_ended_are_forgotten(tree: Tree) -> None:
    tree.limiter.grant("uid-1", share("nvml-cgroup", uuid="GPU-1"), "nvml-cgroup", 4 << 30, a_minute())
    for number in range(3):
        name = f"{SLICE}/cri-again-{number}.scope"
        (tree.root / name).mkdir()
        tree.limiter.apply(msgspec.json.encode(LimitRequest("uid-1", "gpu-a/share-1", name)))
        if number < 2:
            (tree.root / name).rmdir()
    kept = json.loads((tree.path / "state/limits/uid-1.json").read_text())
    assert kept["gpu-a/share-1"]["cgroups"] == [f"{SLICE}/cri-again-2.scope"]


def test_a_second_container_of_a_share_is_reported(tree: Tree, caplog: pytest.LogCaptureFixture) -> None:
    tree.limiter.grant("uid-1", share("nvml-cgroup", uuid="GPU-1"), "nvml-cgroup", 4 << 30, a_minute())
    for name, warnings in ((SCOPE, 0), (SCOPE, 0), (f"{SLICE}/cri-2.scope", 1)):
        (tree.root / name).mkdir(exist_ok=True)
        tree.limiter.apply(msgspec.json.encode(LimitRequest("uid-1", "gpu-a/share-1", name)))
        assert sum("each have" in record.message for record in caplog.records) == warnings


@tiers.PATIENCE
def test_without_the_agent_no_container_starts_unlimited(tree: Tree) -> None:
    edits = tree.limiter.grant("uid-1", share("nvml-cgroup", uuid="GPU-1"), "nvml-cgroup", 4 << 30, a_minute())
    done = tree.hook(*arguments(edits))
    assert done.returncode == 1 and "is it running?" in done.stderr


def test_a_container_reports_the_error_of_the_driver(tree: Tree) -> None:
    edits = tree.limiter.grant("uid-1", share("nvml-cgroup", uuid="GPU-1"), "nvml-cgroup", 4 << 30, a_minute())
    tree.driver.refuses = 'no "permission"'
    with answered(tree.limiter, tree.path / "host/hooks.sock"):
        done = tree.hook(*arguments(edits))
    assert done.returncode == 1 and 'cannot be limited: NVML: no "permission"' in done.stderr


def test_a_claim_that_is_gone_has_no_limit_to_apply(tree: Tree) -> None:
    edits = tree.limiter.grant("uid-1", share("nvml-cgroup", uuid="GPU-1"), "nvml-cgroup", 4 << 30, a_minute())
    tree.limiter.revoke("uid-1", a_minute())
    with answered(tree.limiter, tree.path / "host/hooks.sock"):
        done = tree.hook(*arguments(edits))
    assert done.returncode == 1 and "no such share" in done.stderr
    assert tree.driver.set_ == []


@pytest.mark.parametrize(
    "ask",
    [
        LimitRequest("../uid-1", "gpu-a/share-1", SCOPE),
        LimitRequest("uid-1", "gpu-a/share-2", SCOPE),
        LimitRequest("uid-1", "gpu-a/share-1", ""),
        LimitRequest("uid-1", "gpu-a/share-1", "../../etc"),
        LimitRequest("uid-1", "gpu-a/share-1", "/etc"),
        LimitRequest("uid-1", "gpu-a/share-1", "kubepods.slice/link"),
        LimitRequest("uid-1", "gpu-a/share-1", "kubepods.slice/nonesuch"),
        LimitRequest("uid-1", "gpu-a/share-1", "a\nb"),
    ],
)
def test_external_names_are_validated_before_use(tree: Tree, ask: LimitRequest) -> None:
    tree.limiter.grant("uid-1", share("nvml-cgroup", uuid="GPU-1"), "nvml-cgroup", 4 << 30, a_minute())
    (tree.root / "kubepods.slice/link").symlink_to(tree.path)
    with pytest.raises(PermanentError):
        tree.limiter.apply(msgspec.json.encode(ask))
    assert tree.driver.set_ == []


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b'{"claim":"uid-1"}', b"\xff"])
def test_a_line_that_is_not_a_request_is_refused(tree: Tree, line: bytes) -> None:
    with pytest.raises(PermanentError):
        tree.limiter.apply(line)


def test_a_hook_that_was_changed_is_put_back(tree: Tree) -> None:
    program = ContainerHook(tree.path / "host")
    program.install()
    program.path.write_bytes(b"#!/bin/true\n")
    ContainerHook(tree.path / "host").install()
    assert program.path.read_bytes() == BUILT_BINARY.read_bytes()


def test_the_hook_needs_no_library() -> None:
    # PT_INTERP (3) among the program headers of an ELF file asks for a loader.
    data = BUILT_BINARY.read_bytes()
    offset = int.from_bytes(data[32:40], "little")
    size, count = int.from_bytes(data[54:56], "little"), int.from_bytes(data[56:58], "little")
    kinds = [int.from_bytes(data[offset + n * size :][:4], "little") for n in range(count)]
    assert 1 in kinds and 3 not in kinds


def test_damaged_limits_are_quarantined_and_no_container_starts(tree: Tree) -> None:
    tree.limiter.grant("uid-1", share("nvml-cgroup", uuid="GPU-1"), "nvml-cgroup", 4 << 30, a_minute())
    path = tree.path / "state/limits/uid-1.json"
    path.write_text("{")
    with pytest.raises(PermanentError, match="is damaged: .*; delete the claim's pods"):
        tree.limiter.noted("uid-1")
    assert not path.exists()
