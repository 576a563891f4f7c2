"""Links of device nodes in /dev/char: who needs them, which are missing, and how they are made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import dra_simulate
from dra_agent.doctor import CheckContext, Finding, Severity
from dra_agent.doctor.device_links import check_device_links
from dra_agent.host import Host
from dra_agent.inventory.collector import collect
from dra_agent.inventory.nvidia.nvml_client import acquire
from dra_agent.topology import scan
from dra_simulate.profiles import MODULES
from eventually import DEADLINE_S

from .conftest import Programs, Scanned

RUNC_1_1_5 = "runc version 1.1.5\nspec: 1.0.2"
RUNC_1_1_12 = "runc version 1.1.12\nspec: 1.0.2"
SYSTEMD_239 = "systemd 239 (239-82.el8_10.5)\n+PAM +AUDIT"
SYSTEMD_252 = "systemd 252 (252.30-1~deb12u2)\n+PAM +AUDIT"
CTK = "NVIDIA Container Toolkit CLI version 1.17.8"


def of_nvidia(host: Host) -> list[Path]:
    return [path for path in (host.dev / "char").iterdir() if "nvidia" in str(path.readlink())]


def found(context: CheckContext) -> list[Finding]:
    return list(check_device_links(context))


@pytest.fixture
def unlinked(scanned: Scanned, host: Host) -> CheckContext:
    """A host of which no tool has made the links of NVIDIA's nodes."""
    for path in of_nvidia(host):
        path.unlink()
    return scanned()


def test_linked_nodes_are_reported_once(scanned: Scanned) -> None:
    context = scanned()
    assert context.inventory is not None
    nodes = {node.path for device in context.inventory.devices for node in device.nodes}
    assert [(one.severity, one.message) for one in found(context)] == [
        (Severity.OK, f"{len(nodes)} device nodes have their links")
    ]


def test_missing_links_are_one_warning_per_host(unlinked: CheckContext, host: Host) -> None:
    [warning] = found(unlinked)
    assert warning.severity is Severity.WARNING
    assert warning.where == str(host.dev / "char")
    assert "/dev/nvidia0" in warning.message and "daemon-reload" in warning.message
    number = (host.dev / "nvidia0").stat().st_rdev
    name = f"{os.major(number)}:{os.minor(number)}" if number else "MAJOR:MINOR"
    assert f"ln -sf {host.dev}/nvidia0 {host.dev}/char/{name}" in warning.hint
    assert "nvidia-ctk" not in warning.hint, "it is not installed"


def test_the_repair_is_the_tool_of_the_vendor_where_it_is_installed(unlinked: CheckContext) -> None:
    unlinked.commands = Programs(**{"nvidia-ctk": CTK})
    [warning] = found(unlinked)
    assert "`nvidia-ctk system create-dev-char-symlinks --create-all`" in warning.hint
    assert "each boot" in warning.hint and "ln -sf" not in warning.hint


@pytest.mark.parametrize(
    ("programs", "needed"),
    [
        ({}, True),
        ({"runc": RUNC_1_1_12}, True),
        ({"systemctl": SYSTEMD_252}, True),
        ({"systemctl": SYSTEMD_252, "runc": RUNC_1_1_5}, True),
        ({"systemctl": SYSTEMD_239, "runc": RUNC_1_1_12}, True),
        ({"systemctl": SYSTEMD_239, "crun": "crun version 1.14"}, True),
        ({"systemctl": SYSTEMD_252, "runc": RUNC_1_1_12}, False),
        ({"systemctl": SYSTEMD_252, "runc": "runc version 1.1.2"}, False),
        ({"systemctl": SYSTEMD_252, "crun": "crun version 1.14"}, False),
        ({"systemctl": SYSTEMD_252, "runc": RUNC_1_1_5, "crun": "crun version 1.14"}, True),
        ({"systemctl": SYSTEMD_252, "runc": "runc: not today"}, True),
        ({"systemctl": "not today", "runc": RUNC_1_1_12}, True),
    ],
)
def test_links_are_needed_by_versions_that_look_devices_up(
    unlinked: CheckContext, programs: dict[str, str], *, needed: bool
) -> None:
    unlinked.commands = Programs(**programs)
    [finding] = found(unlinked)
    assert (finding.severity is Severity.WARNING) == needed
    assert needed or "systemd 252" in finding.message


@pytest.mark.parametrize(
    ("containerd", "docker", "needed"),
    [
        ("SystemdCgroup = false", None, False),
        ("SystemdCgroup = true", None, True),
        ("", None, True),
        ("SystemdCgroup = fal", None, True),
        (None, '{"exec-opts": ["native.cgroupdriver=cgroupfs"]}', False),
        (None, '{"exec-opts": ["native.cgroupdriver=systemd"]}', True),
        (None, "{}", True),
        (None, '{"exec-opts": 7}', True),
        ("SystemdCgroup = false", "{}", True),
        ("SystemdCgroup = false", '{"exec-opts": ["native.cgroupdriver=cgroupfs"]}', False),
    ],
)
def test_links_are_not_needed_where_no_runtime_uses_systemd_for_cgroups(
    unlinked: CheckContext, containerd: str | None, docker: str | None, *, needed: bool
) -> None:
    programs = {"runc": RUNC_1_1_5}
    if containerd is not None:
        programs["containerd"] = "containerd 1.7.2"
        options = '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]\n'
        unlinked.containerd_config.write_text(options + containerd)
    if docker is not None:
        programs["dockerd"] = "Docker version 25.0.1"
        unlinked.docker_config.write_text(docker)
    unlinked.commands = Programs(**programs)
    [finding] = found(unlinked)
    assert (finding.severity is Severity.WARNING) == needed


def test_nodes_that_are_plain_files_are_found_by_their_links(
    healthy_host: CheckContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "mknod", refuse)
    host = dra_simulate.build("a30", tmp_path / "a30")
    assert (host.dev / "nvidia0").is_file()
    healthy_host.host, healthy_host.topology = host, scan(host)
    healthy_host.inventory = collect(host, healthy_host.topology)
    assert [one.severity for one in found(healthy_host)] == [Severity.OK]
    next(path for path in of_nvidia(host) if path.samefile(host.dev / "nvidia2")).unlink()
    [warning] = found(healthy_host)
    assert "/dev/nvidia2" in warning.message and "char/MAJOR:MINOR" in warning.hint


def test_absolute_links_lead_into_the_hosts_own_dev(scanned: Scanned, host: Host) -> None:
    # NVIDIA's tool writes absolute ones, and an agent in a container may see the host's /dev elsewhere.
    for path in of_nvidia(host):
        target = f"/dev/{os.path.relpath(path.resolve(), host.dev)}"
        path.unlink()
        path.symlink_to(target)
    assert [one.severity for one in found(scanned())] == [Severity.OK]


def test_a_link_to_another_device_is_none(scanned: Scanned, host: Host) -> None:
    # A driver that was reloaded may have another number, and the links of the earlier one remain.
    for path in of_nvidia(host):
        if path.samefile(host.dev / "nvidia0"):
            path.unlink()
            path.symlink_to("../null")
    [warning] = found(scanned())
    assert "1 of" in warning.message and "/dev/nvidia0" in warning.message


def test_links_of_devices_that_the_kernel_reports_are_made_by_udev(healthy_host: CheckContext, tmp_path: Path) -> None:
    host = dra_simulate.build("arc-b60", tmp_path / "arc")
    for path in (host.dev / "char").iterdir():
        path.unlink()
    healthy_host.host, healthy_host.topology = host, scan(host)
    healthy_host.inventory = collect(host, healthy_host.topology)
    [warning] = found(healthy_host)
    assert "udevadm trigger" in warning.hint and "nvidia" not in warning.hint


def test_a_host_without_udev_has_no_links_and_no_finding(scanned: Scanned, host: Host) -> None:
    for path in (host.dev / "char").iterdir():
        path.unlink()
    (host.dev / "char").rmdir()
    assert found(scanned()) == []


def test_a_missing_node_is_not_reported_as_a_missing_link(scanned: Scanned, host: Host) -> None:
    (host.dev / "nvidia0").unlink()
    [finding] = found(scanned())
    assert finding.severity is Severity.OK


def test_links_exist_where_udev_or_the_vendors_tool_makes_them(healthy_host: CheckContext, tmp_path: Path) -> None:
    without: set[str] = set()
    for profile in MODULES:
        host = dra_simulate.build(profile, tmp_path / profile)
        healthy_host.host, healthy_host.topology = host, scan(host)
        healthy_host.inventory = collect(host, healthy_host.topology)
        if any(finding.severity is Severity.WARNING for finding in found(healthy_host)):
            without.add(profile)
    assert without == {"vm-1gpu"}, "its driver was installed without NVIDIA's container toolkit"


def test_the_nodes_of_mig_instances_have_links(scanned: Scanned, host: Host) -> None:
    library = acquire(host.nvml_library, DEADLINE_S)
    library.start()
    gpu = library.call("nvmlDeviceGetHandleByPciBusId", b"0000:1b:00.0")
    library.call("nvmlDeviceSetMigMode", gpu, 1)
    instance = library.call("nvmlDeviceCreateGpuInstance", gpu, 19)
    library.call("nvmlGpuInstanceCreateComputeInstance", instance, 0)
    library.close()
    context = scanned()
    assert context.inventory is not None
    assert any("nvidia-caps" in node.path for device in context.inventory.devices for node in device.nodes)
    assert [one.severity for one in found(context)] == [Severity.OK]
