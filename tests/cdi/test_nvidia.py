"""The three ways to give a container an NVIDIA GPU, and when each is used."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dra_agent.cdi.edits import nvidia_toolkit
from dra_agent.cdi.edits.nvidia import version_numbers
from dra_agent.cdi.edits.registry import EditProviders, host_program
from dra_agent.cdi.model import ContainerEdits
from dra_agent.driver_root import DriverRoot
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
    """Return a short version of nvidia-ctk's spec; the libraries that it names exist."""
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


def fake_toolkit(tmp_path: Path, body: str) -> Path:
    """Create a fake nvidia-ctk that records its calls."""
    path = tmp_path / "nvidia-ctk"
    path.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n{body}\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def calls(tmp_path: Path) -> list[str]:
    path = tmp_path / "calls"
    return path.read_text().splitlines() if path.exists() else []


def test_toolkit_spec_is_used_if_it_matches(host: Host, cdi: Path, tmp_path: Path) -> None:
    (cdi / "nvidia.yaml").write_text(as_yaml(toolkit_spec(tmp_path)))
    edits = EditProviders(host, directories=[cdi]).edits(gpu(host))
    assert edits.foreign_ids == (f"nvidia.com/gpu={UUID}",)
    assert edits.own == ContainerEdits() and edits.common == ContainerEdits() and edits.notes == ()


@pytest.mark.parametrize(
    "reason", ["driver", "renumbered", "other gpu", "library gone", "no library", "refused", "twice"]
)
def test_toolkit_spec_that_does_not_match_is_ignored(host: Host, cdi: Path, tmp_path: Path, reason: str) -> None:
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


def test_directory_with_higher_priority_decides(host: Host, cdi: Path, tmp_path: Path) -> None:
    low = tmp_path / "low"
    low.mkdir()
    (low / "nvidia.yaml").write_text(as_yaml(toolkit_spec(tmp_path)))
    providers = EditProviders(host, directories=[low, cdi])
    assert providers.edits(gpu(host)).foreign_ids
    (cdi / "nvidia.yaml").write_text(as_yaml(toolkit_spec(tmp_path, version="570.1.2")))
    assert not providers.edits(gpu(host)).foreign_ids, "runtimes use the stale one, which has priority"


def test_changed_toolkit_spec_is_detected_at_once(host: Host, cdi: Path, tmp_path: Path) -> None:
    providers = EditProviders(host, directories=[cdi])
    assert not providers.edits(gpu(host)).foreign_ids
    (cdi / "nvidia.json").write_text(json.dumps(toolkit_spec(tmp_path, version="570.1.2")))
    assert not providers.edits(gpu(host)).foreign_ids
    (cdi / "nvidia.json").write_text(json.dumps(toolkit_spec(tmp_path)))
    assert providers.edits(gpu(host)).foreign_ids


def test_toolkit_runs_once_without_a_published_spec(host: Host, cdi: Path, tmp_path: Path) -> None:
    (tmp_path / "answer.json").write_text(json.dumps(toolkit_spec(tmp_path)))
    ctk = fake_toolkit(tmp_path, f"cat {tmp_path}/answer.json")
    providers = EditProviders(host, directories=[cdi], program_finder={"nvidia-ctk": ctk}.get)
    first = providers.edits(gpu(host))
    assert providers.edits(gpu(host)) == first
    assert calls(tmp_path) == [f"cdi generate --format=json --device-name-strategy=uuid --device-id={UUID}"]
    assert [node.path for node in first.own.device_nodes] == ["/dev/nvidia0"]
    assert first.common.hooks and len(first.common.mounts) == 2 and first.notes == () and first.foreign_ids == ()
    providers.edits(gpu(host, version="580.82.7"))
    assert len(calls(tmp_path)) == 2, "another driver version has other libraries"
    (tmp_path / "lib" / "libcuda.so.580.65.06").unlink()
    providers.edits(gpu(host))
    assert len(calls(tmp_path)) == 3, "a removed library invalidates the cached result"


def test_older_toolkit_generates_all_devices(host: Host, cdi: Path, tmp_path: Path) -> None:
    (tmp_path / "answer.json").write_text(json.dumps(toolkit_spec(tmp_path)))
    refusal = "echo 'Incorrect Usage: flag provided but not defined: -device-id' >&2; exit 1"
    ctk = fake_toolkit(tmp_path, f'case "$*" in *--device-id*) {refusal};; esac\ncat {tmp_path}/answer.json')
    edits = EditProviders(host, directories=[cdi], program_finder={"nvidia-ctk": ctk}.get).edits(gpu(host))
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
def test_failing_toolkit_is_a_retryable_error(host: Host, cdi: Path, tmp_path: Path, body: str, message: str) -> None:
    providers = EditProviders(host, directories=[cdi], program_finder={"nvidia-ctk": fake_toolkit(tmp_path, body)}.get)
    with pytest.raises(RetryableError, match=message) as error:
        providers.edits(gpu(host))
    assert error.value.where == str(tmp_path / "nvidia-ctk") and error.value.hint


def test_failure_for_one_gpu_does_not_affect_others(host: Host, cdi: Path, tmp_path: Path) -> None:
    (tmp_path / "answer.json").write_text(json.dumps(toolkit_spec(tmp_path)))
    providers = EditProviders(
        host,
        directories=[cdi],
        program_finder={"nvidia-ctk": fake_toolkit(tmp_path, f"cat {tmp_path}/answer.json")}.get,
    )
    with pytest.raises(RetryableError, match=f"does not know {OTHER}"):
        providers.edits(gpu(host, uuid=OTHER))
    assert providers.edits(gpu(host)).common.hooks


def test_hung_toolkit_blocks_for_one_deadline(host: Host, cdi: Path, tmp_path: Path) -> None:
    ctk = nvidia_toolkit.ToolkitCommand(fake_toolkit(tmp_path, "sleep 3600 & sleep 3600"), deadline=0.3)
    with pytest.raises(RetryableError, match=r"did not respond within 0\.3 s"):
        ctk.edits(UUID, None)
    calls_before = calls(tmp_path)  # none if the tool was killed before its first line
    with pytest.raises(RetryableError, match="hung less than 30 s ago"):
        ctk.edits(OTHER, None)
    assert calls(tmp_path) == calls_before


def test_missing_toolkit_is_named(host: Host, cdi: Path, tmp_path: Path) -> None:
    providers = EditProviders(host, directories=[cdi], program_finder={"nvidia-ctk": tmp_path / "missing"}.get)
    with pytest.raises(RetryableError, match="missing: cannot be run: No such file"):
        providers.edits(gpu(host))


def test_device_nodes_alone_come_with_a_note(host: Host, cdi: Path) -> None:
    edits = EditProviders(host, directories=[cdi]).edits(gpu(host))
    assert [mount.container_path for mount in edits.own.mounts] == ["/dev/nvidia0"]
    common = [mount.container_path for mount in edits.common.mounts]
    assert common == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"], (
        "modeset does not exist on this host"
    )
    assert edits.common.env == ("NVIDIA_VISIBLE_DEVICES=void",)
    assert "driver libraries are not injected" in edits.notes[0]


def test_missing_control_node_is_an_error(host: Host, cdi: Path) -> None:
    path = "/dev/nvidia-uvm"
    device = msgspec.structs.replace(gpu(host), nodes=(DeviceNode(path, str(host.dev_path(path)), "control"),))
    assert EditProviders(host, directories=[cdi]).edits(device).notes
    host.dev_path(path).unlink()
    with pytest.raises(RetryableError, match="nvidia-uvm cannot be used"):
        EditProviders(host, directories=[cdi]).edits(device)


def test_gpu_without_its_node_is_an_error_in_every_way(host: Host, cdi: Path, tmp_path: Path) -> None:
    (cdi / "nvidia.yaml").write_text(as_yaml(toolkit_spec(tmp_path)))
    host.dev_path("/dev/nvidia0").unlink()
    with pytest.raises(RetryableError, match=r"device gpu-0: its device node .*/nvidia0 cannot be used"):
        EditProviders(host, directories=[cdi]).edits(gpu(host))


def test_mig_instance_has_capability_nodes_missing_on_the_host(host: Host, cdi: Path, make_node: MakeNode) -> None:
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
    nodes_by_path = {node.path: node for node in EditProviders(host, directories=[cdi]).edits(mig).own.device_nodes}
    assert (nodes_by_path["/dev/nvidia0"].major, nodes_by_path["/dev/nvidia0"].minor) == (195, 0)
    assert nodes_by_path["/dev/nvidia-caps/nvidia-cap66"].host_path == str(
        host.dev_path("/dev/nvidia-caps/nvidia-cap66")
    )
    missing_node = nodes_by_path["/dev/nvidia-caps/nvidia-cap67"]
    assert (missing_node.type, missing_node.major, missing_node.minor, missing_node.host_path) == ("c", 511, 67, "")


def test_capability_without_a_driver_is_an_error(host: Host, cdi: Path) -> None:
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
    """Return a MIG instance with its nodes, as the driver reports them in /proc."""
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
def test_destroyed_mig_instance_is_refused(
    host: Host, cdi: Path, tmp_path: Path, make_node: MakeNode, gone: str, published: bool
) -> None:
    """Its nodes need not exist, and their numbers can belong to a later instance with the same ids."""
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


def test_toolkit_of_this_machine_is_not_used_for_a_simulated_one(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctk = fake_toolkit(tmp_path, "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert host_program(Host(), "nvidia-ctk") == ctk
    assert host_program(host, "nvidia-ctk") is None


def driver_below(tmp_path: Path, host: Host, *, own_dev: bool) -> Host:
    """Give the host a driver root at /run/nvidia/driver, which the agent sees elsewhere."""
    mount = tmp_path / "driver-root"
    (mount / "usr/lib64").mkdir(parents=True)
    (mount / "usr/lib64/libnvidia-ml.so.1").write_bytes(b"\x7fELF\x02")
    if own_dev:
        (mount / "dev").mkdir()
        for name in ("nvidia0", "nvidiactl", "nvidia-uvm"):
            (mount / "dev" / name).touch()
    return replace(host, driver_root=DriverRoot(Path("/run/nvidia/driver"), mount))


def test_nodes_of_a_driver_root_are_named_as_on_the_host(host: Host, cdi: Path, tmp_path: Path) -> None:
    host = driver_below(tmp_path, host, own_dev=True)
    nodes = (DeviceNode("/dev/nvidia0", str(host.driver_node("/dev/nvidia0")), "gpu"),)
    edits = EditProviders(host, directories=[cdi]).edits(msgspec.structs.replace(gpu(host), nodes=nodes))
    paths = {mount.container_path: mount.host_path for mount in (*edits.own.mounts, *edits.common.mounts)}
    assert paths == {
        f"/dev/{name}": f"/run/nvidia/driver/dev/{name}" for name in ("nvidia0", "nvidiactl", "nvidia-uvm")
    }


@pytest.mark.parametrize("own_dev", [False, True])
def test_the_toolkit_is_given_the_driver_root(host: Host, cdi: Path, tmp_path: Path, own_dev: bool) -> None:
    host = driver_below(tmp_path, host, own_dev=own_dev)
    assert host.driver_root is not None
    mount = host.driver_root.mount
    library = mount / "usr/lib64/libcuda.so.580.65.06"
    library.touch()
    spec = toolkit_spec(tmp_path)
    spec["containerEdits"]["mounts"] = [{"hostPath": str(library), "containerPath": "/usr/lib64/libcuda.so.580.65.06"}]
    tool = tmp_path / "nvidia-ctk"
    tool.write_text(f"#!/bin/sh\necho \"$*\" > {tmp_path}/arguments\ncat <<'END'\n{json.dumps(spec)}\nEND\n")
    tool.chmod(0o755)
    edits = EditProviders(host, directories=[cdi], program_finder={"nvidia-ctk": tool}.get).edits(gpu(host))
    dev_root = mount if own_dev else "/"
    assert f"--driver-root={mount} --dev-root={dev_root}" in (tmp_path / "arguments").read_text()
    (found,) = edits.common.mounts
    assert found.host_path == "/run/nvidia/driver/usr/lib64/libcuda.so.580.65.06"
    assert found.container_path == "/usr/lib64/libcuda.so.580.65.06"


def test_the_toolkit_s_spec_may_name_files_of_the_driver_root(host: Host, cdi: Path, tmp_path: Path) -> None:
    host = driver_below(tmp_path, host, own_dev=False)
    assert host.driver_root is not None
    path = "usr/lib64/libcuda.so.580.65.06"
    spec = toolkit_spec(tmp_path)
    spec["containerEdits"]["mounts"] = [{"hostPath": f"/run/nvidia/driver/{path}", "containerPath": f"/{path}"}]
    (cdi / "nvidia.json").write_text(json.dumps(spec))
    providers = EditProviders(host, directories=[cdi])
    assert providers.edits(gpu(host)).foreign_ids == (), "the file does not exist"
    (host.driver_root.mount / path).touch()
    assert providers.edits(gpu(host)).foreign_ids == (f"nvidia.com/gpu={UUID}",)
