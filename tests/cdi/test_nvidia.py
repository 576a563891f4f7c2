"""The three ways to give a container an NVIDIA GPU, and when each is taken."""

from __future__ import annotations

import json
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dra_agent.cdi.edits import toolkit
from dra_agent.cdi.edits.nvidia import version_numbers
from dra_agent.cdi.edits.registry import EditProviders, find_nvidia_ctk
from dra_agent.cdi.model import ContainerEdits
from dra_agent.errors import RetryableError
from dra_agent.host import Host
from dra_agent.inventory.api import Attribute
from dra_agent.inventory.model import Device, DeviceNode, NodeRole

UUID = "GPU-11111111-2222-3333-4444-555555555555"
OTHER = "GPU-99999999-2222-3333-4444-555555555555"
MakeNode = Callable[[Path, int, int], None]


@pytest.fixture
def host(simulated_host: Host) -> Host:
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"):
        simulated_host.dev_path(f"/dev/{name}").touch()
    return simulated_host


@pytest.fixture
def cdi(tmp_path: Path) -> Path:
    (tmp_path / "cdi").mkdir()
    return tmp_path / "cdi"


def gpu(host: Host, uuid: str = UUID, version: str = "580.65.6", node: str = "/dev/nvidia0") -> Device:
    nodes = (DeviceNode(node, str(host.dev_path(node)), "gpu"),)
    attributes = {"driverVersion": Attribute(version=version)}
    return Device("gpu-0", "gpu", "nvidia", "0000:1b:00.0", attributes, nodes=nodes, identity={"uuid": uuid})


def toolkit_spec(
    tmp_path: Path, version: str = "580.65.06", node: str = "/dev/nvidia0", **changes: Any
) -> dict[str, Any]:
    """What nvidia-ctk writes, in short; the libraries that it names exist."""
    libraries = [tmp_path / "lib" / f"libcuda.so.{version}", tmp_path / "lib" / f"libnvidia-ml.so.{version}"]
    for library in libraries:
        library.parent.mkdir(exist_ok=True)
        library.touch()
    return {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [{"name": name, "containerEdits": {"deviceNodes": [{"path": node}]}} for name in ("0", UUID)],
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            "deviceNodes": [{"path": "/dev/nvidiactl"}],
            "mounts": [
                {"hostPath": str(path), "containerPath": f"/usr/lib/{path.name}", "options": ["ro", "bind"]}
                for path in libraries
            ],
            "hooks": [
                {"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook", "args": ["nvidia-cdi-hook", "x"]}
            ],
        },
        **changes,
    }


def as_yaml(spec: dict[str, Any]) -> str:
    import yaml

    text: str = yaml.safe_dump(spec)
    return f"---\n{text}"


def tool(tmp_path: Path, body: str) -> Path:
    """A stand-in for nvidia-ctk that notes how it was called."""
    path = tmp_path / "nvidia-ctk"
    path.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n{body}\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def calls(tmp_path: Path) -> list[str]:
    path = tmp_path / "calls"
    return path.read_text().splitlines() if path.exists() else []


def test_the_toolkits_own_spec_is_used_where_it_fits(host: Host, cdi: Path, tmp_path: Path) -> None:
    (cdi / "nvidia.yaml").write_text(as_yaml(toolkit_spec(tmp_path)))
    edits = EditProviders(host, directories=[cdi]).edits(gpu(host))
    assert edits.foreign_ids == (f"nvidia.com/gpu={UUID}",)
    assert edits.own == ContainerEdits() and edits.common == ContainerEdits() and edits.notes == ()


@pytest.mark.parametrize(
    "reason", ["driver", "renumbered", "other gpu", "library gone", "no library", "refused", "twice"]
)
def test_a_toolkit_spec_that_does_not_fit_is_passed_over(host: Host, cdi: Path, tmp_path: Path, reason: str) -> None:
    spec = toolkit_spec(tmp_path)
    if reason == "driver":
        spec = toolkit_spec(tmp_path, version="575.57.08")
    elif reason == "renumbered":
        spec = toolkit_spec(tmp_path, node="/dev/nvidia3")
    elif reason == "other gpu":
        spec["devices"] = [{**spec["devices"][0], "name": OTHER}]
    elif reason == "library gone":
        (tmp_path / "lib" / "libcuda.so.580.65.06").unlink()
    elif reason == "no library":
        spec["containerEdits"] = {"env": ["A=1"]}
    elif reason == "refused":
        spec["surprise"] = True
    (cdi / "nvidia.yaml").write_text(as_yaml(spec))
    if reason == "twice":
        (cdi / "nvidia-copy.yaml").write_text(as_yaml(spec))
    edits = EditProviders(host, directories=[cdi]).edits(gpu(host))
    assert edits.foreign_ids == ()
    assert "driver libraries are not injected" in edits.notes[0]


def test_the_higher_directory_decides(host: Host, cdi: Path, tmp_path: Path) -> None:
    low = tmp_path / "low"
    low.mkdir()
    (low / "nvidia.yaml").write_text(as_yaml(toolkit_spec(tmp_path)))
    recipes = EditProviders(host, directories=[low, cdi])
    assert recipes.edits(gpu(host)).foreign_ids
    (cdi / "nvidia.yaml").write_text(as_yaml(toolkit_spec(tmp_path, version="570.1.2")))
    assert not recipes.edits(gpu(host)).foreign_ids, "runtimes would take the stale one, which has priority"


def test_a_refreshed_toolkit_spec_is_seen_at_once(host: Host, cdi: Path, tmp_path: Path) -> None:
    recipes = EditProviders(host, directories=[cdi])
    assert not recipes.edits(gpu(host)).foreign_ids
    (cdi / "nvidia.json").write_text(json.dumps(toolkit_spec(tmp_path, version="570.1.2")))
    assert not recipes.edits(gpu(host)).foreign_ids
    (cdi / "nvidia.json").write_text(json.dumps(toolkit_spec(tmp_path)))
    assert recipes.edits(gpu(host)).foreign_ids


def test_the_toolkit_is_asked_once_where_it_published_nothing(host: Host, cdi: Path, tmp_path: Path) -> None:
    (tmp_path / "answer.json").write_text(json.dumps(toolkit_spec(tmp_path)))
    ctk = tool(tmp_path, f"cat {tmp_path}/answer.json")
    recipes = EditProviders(host, directories=[cdi], ctk=ctk)
    first = recipes.edits(gpu(host))
    assert recipes.edits(gpu(host)) == first
    assert calls(tmp_path) == [f"cdi generate --format=json --device-name-strategy=uuid --device-id={UUID}"]
    assert [node.path for node in first.own.device_nodes] == ["/dev/nvidia0"]
    assert first.common.hooks and len(first.common.mounts) == 2 and first.notes == () and first.foreign_ids == ()
    recipes.edits(gpu(host, version="580.82.7"))
    assert len(calls(tmp_path)) == 2, "another driver has other libraries"
    (tmp_path / "lib" / "libcuda.so.580.65.06").unlink()
    recipes.edits(gpu(host))
    assert len(calls(tmp_path)) == 3, "a library that is gone makes a kept answer worthless"


def test_an_older_toolkit_is_asked_for_all_devices(host: Host, cdi: Path, tmp_path: Path) -> None:
    (tmp_path / "answer.json").write_text(json.dumps(toolkit_spec(tmp_path)))
    refusal = "echo 'Incorrect Usage: flag provided but not defined: -device-id' >&2; exit 1"
    ctk = tool(tmp_path, f'case "$*" in *--device-id*) {refusal};; esac\ncat {tmp_path}/answer.json')
    edits = EditProviders(host, directories=[cdi], ctk=ctk).edits(gpu(host))
    assert len(calls(tmp_path)) == 2 and [node.path for node in edits.own.device_nodes] == ["/dev/nvidia0"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("echo 'failed to initialize NVML: driver not loaded' >&2; exit 1", "exit status 1: failed to initialize NVML"),
        ("echo '{\"cdiVersion\": '", "its output cannot be used"),
        ('echo \'{"cdiVersion": "0.5.0", "novelty": 1}\'', "unknown field `novelty`"),
        ("exit 3", "exit status 3: no message"),
    ],
)
def test_a_failing_toolkit_is_an_error_that_may_pass(
    host: Host, cdi: Path, tmp_path: Path, body: str, message: str
) -> None:
    recipes = EditProviders(host, directories=[cdi], ctk=tool(tmp_path, body))
    with pytest.raises(RetryableError, match=message) as caught:
        recipes.edits(gpu(host))
    assert caught.value.where == str(tmp_path / "nvidia-ctk") and caught.value.hint


def test_a_failure_for_one_gpu_leaves_the_others_alone(host: Host, cdi: Path, tmp_path: Path) -> None:
    (tmp_path / "answer.json").write_text(json.dumps(toolkit_spec(tmp_path)))
    recipes = EditProviders(host, directories=[cdi], ctk=tool(tmp_path, f"cat {tmp_path}/answer.json"))
    with pytest.raises(RetryableError, match=f"does not know {OTHER}"):
        recipes.edits(gpu(host, uuid=OTHER))
    assert recipes.edits(gpu(host)).common.hooks


def test_a_hung_toolkit_costs_one_deadline(host: Host, cdi: Path, tmp_path: Path) -> None:
    ctk = toolkit.ToolkitCommand(tool(tmp_path, "sleep 60 & sleep 60"), deadline=0.3)
    began = time.monotonic()
    with pytest.raises(RetryableError, match=r"did not respond within 0\.3 s"):
        ctk.edits(UUID, None)
    asked = calls(tmp_path)  # none where the tool was ended before it came that far
    with pytest.raises(RetryableError, match="hung less than 30 s ago"):
        ctk.edits(OTHER, None)
    assert time.monotonic() - began < 50 and calls(tmp_path) == asked


def test_a_toolkit_that_cannot_be_run_is_named(host: Host, cdi: Path, tmp_path: Path) -> None:
    recipes = EditProviders(host, directories=[cdi], ctk=tmp_path / "missing")
    with pytest.raises(RetryableError, match="missing: cannot be run: No such file"):
        recipes.edits(gpu(host))


def test_nodes_alone_are_given_with_a_note(host: Host, cdi: Path) -> None:
    edits = EditProviders(host, directories=[cdi]).edits(gpu(host))
    assert [mount.container_path for mount in edits.own.mounts] == ["/dev/nvidia0"]
    common = [mount.container_path for mount in edits.common.mounts]
    assert common == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"], "modeset is not on this host"
    assert edits.common.env == ("NVIDIA_VISIBLE_DEVICES=void",)
    assert "driver libraries are not injected" in edits.notes[0]


def test_a_control_node_that_the_gpu_needs_must_be_there(host: Host, cdi: Path) -> None:
    path = "/dev/nvidia-uvm"
    device = msgspec.structs.replace(gpu(host), nodes=(DeviceNode(path, str(host.dev_path(path)), "control"),))
    assert EditProviders(host, directories=[cdi]).edits(device).notes
    host.dev_path(path).unlink()
    with pytest.raises(RetryableError, match="nvidia-uvm cannot be used"):
        EditProviders(host, directories=[cdi]).edits(device)


def test_a_gpu_without_its_node_cannot_be_used_whichever_way_is_taken(host: Host, cdi: Path, tmp_path: Path) -> None:
    (cdi / "nvidia.yaml").write_text(as_yaml(toolkit_spec(tmp_path)))
    host.dev_path("/dev/nvidia0").unlink()
    with pytest.raises(RetryableError, match=r"device gpu-0: its device node .*/nvidia0 cannot be used"):
        EditProviders(host, directories=[cdi]).edits(gpu(host))


def test_a_mig_slice_gets_capability_nodes_that_the_host_never_made(host: Host, cdi: Path, make_node: MakeNode) -> None:
    host.dev_path("/dev/nvidia0").unlink()
    make_node(host.dev_path("/dev/nvidia0"), 195, 0)
    make_node(host.dev_path("/dev/nvidia-caps/nvidia-cap66"), 511, 66)
    (host.proc / "devices").write_text(
        "Character devices:\n  1 mem\n511 nvidia-caps\n\nBlock devices:\n  8 nvidia-caps\n"
    )
    paths: dict[str, NodeRole] = {f"/dev/nvidia-caps/nvidia-cap{n}": "capability" for n in (66, 67)}
    paths = {"/dev/nvidia0": "gpu", **paths}
    nodes = tuple(DeviceNode(path, str(host.dev_path(path)), role) for path, role in paths.items())
    mig = Device("gpu-0-mig", "gpu", "nvidia", "0000:1b:00.0", {}, nodes=nodes, identity={"uuid": "MIG-1"})
    made = {node.path: node for node in EditProviders(host, directories=[cdi]).edits(mig).own.device_nodes}
    assert (made["/dev/nvidia0"].major, made["/dev/nvidia0"].minor) == (195, 0)
    assert made["/dev/nvidia-caps/nvidia-cap66"].host_path == str(host.dev_path("/dev/nvidia-caps/nvidia-cap66"))
    unmade = made["/dev/nvidia-caps/nvidia-cap67"]
    assert (unmade.type, unmade.major, unmade.minor, unmade.host_path) == ("c", 511, 67, "")


def test_a_capability_whose_driver_is_unknown_is_an_error(host: Host, cdi: Path) -> None:
    path = "/dev/nvidia-caps/nvidia-cap66"
    mig = Device(
        "gpu-0-mig",
        "gpu",
        "nvidia",
        "0000:1b:00.0",
        {},
        nodes=(DeviceNode(path, str(host.dev_path(path)), "capability"),),
    )
    with pytest.raises(RetryableError, match="nvidia-cap66 cannot be used"):
        EditProviders(host, directories=[cdi]).edits(mig)


def mig_device(host: Host, make_node: MakeNode) -> Device:
    """A MIG instance with its nodes, of which the driver tells in /proc."""
    host.dev_path("/dev/nvidia0").unlink()
    make_node(host.dev_path("/dev/nvidia0"), 195, 0)
    (host.proc / "devices").write_text("Character devices:\n511 nvidia-caps\n")
    for folder, minor in (("gi7", 66), ("gi7/ci0", 67)):
        capability = host.proc / "driver/nvidia/capabilities/gpu0/mig" / folder
        capability.mkdir(parents=True)
        (capability / "access").write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: 256\nDeviceFileModify: 1\n")
    paths: dict[str, NodeRole] = {f"/dev/nvidia-caps/nvidia-cap{n}": "capability" for n in (66, 67)}
    paths = {"/dev/nvidia0": "gpu", **paths}
    nodes = tuple(DeviceNode(path, str(host.dev_path(path)), role) for path, role in paths.items())
    identity = {"uuid": UUID, "minor": "0", "gpu_instance": "7", "compute_instance": "0"}
    return Device("gpu-0-mig", "gpu", "nvidia", "0000:1b:00.0", {}, nodes=nodes, identity=identity)


@pytest.mark.parametrize("published", [False, True], ids=["own-nodes", "published-spec"])
@pytest.mark.parametrize("gone", ["gi7", "gi7/ci0"])
def test_a_mig_instance_that_was_destroyed_since_it_was_published_is_refused(
    host: Host, cdi: Path, tmp_path: Path, make_node: MakeNode, gone: str, published: bool
) -> None:
    """Its nodes need not exist, and their numbers are those of the next instance with the same ids."""
    device = mig_device(host, make_node)
    if published:
        (cdi / "nvidia.yaml").write_text(as_yaml(toolkit_spec(tmp_path)))
    EditProviders(host, directories=[cdi]).edits(device)
    shutil.rmtree(host.proc / "driver/nvidia/capabilities/gpu0/mig" / gone)
    with pytest.raises(RetryableError, match=r"device gpu-0-mig: its MIG instance is no longer on the GPU"):
        EditProviders(host, directories=[cdi]).edits(device)


def test_versions_are_compared_by_number() -> None:
    assert version_numbers("535.183.01") == version_numbers("535.183.1") == (535, 183, 1)
    assert version_numbers("580.65.6+build.7") == (580, 65, 6)


def test_the_toolkit_of_this_machine_is_not_asked_about_a_simulated_one(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctk = tool(tmp_path, "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_nvidia_ctk(Host()) == ctk
    assert find_nvidia_ctk(host) is None
