"""The simulated NVML refuses MIG calls as the driver does, to processes without the permission."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dra_simulate import build_machine, inject, nvml
from dra_simulate.container import Container, host_service
from dra_simulate.nvml import Access
from simulate.test_mig import MIG, PAIR

NO_PERMISSION = "error 4"
CALLS = """
def every_call(instance, compute):
    placements, count = (nvml.c_nvmlGpuInstancePlacement_t * 8)(), ctypes.c_uint(8)
    room, number = (nvml.c_nvmlGpuInstance_t * 8)(), ctypes.c_uint()
    def refused(function, *arguments):
        return outcome(function, *arguments) == "error 4"
    return {
        "nvmlDeviceGetMemoryInfo": refused(nvml.nvmlDeviceGetMemoryInfo, h),
        "nvmlDeviceGetGpuInstanceProfileInfo": refused(nvml.nvmlDeviceGetGpuInstanceProfileInfo, h, 0),
        "nvmlDeviceGetMigMode": refused(nvml.nvmlDeviceGetMigMode, h),
        "nvmlDeviceGetMigDeviceHandleByIndex": refused(nvml.nvmlDeviceGetMigDeviceHandleByIndex, h, 0),
        "nvmlDeviceGetAttributes": refused(
            nvml.nvmlDeviceGetAttributes, nvml.nvmlDeviceGetMigDeviceHandleByIndex(h, 0)),
        "nvmlDeviceSetMigMode": refused(nvml.nvmlDeviceSetMigMode, h, 1),
        "nvmlDeviceGetGpuInstances": refused(nvml.nvmlDeviceGetGpuInstances, h, ONE, room, ctypes.byref(number)),
        "nvmlDeviceGetGpuInstanceById": refused(nvml.nvmlDeviceGetGpuInstanceById, h, 9),
        "nvmlDeviceGetGpuInstancePossiblePlacements": refused(
            nvml.nvmlDeviceGetGpuInstancePossiblePlacements, h, ONE, placements, ctypes.byref(count)),
        "nvmlDeviceGetGpuInstanceRemainingCapacity": refused(nvml.nvmlDeviceGetGpuInstanceRemainingCapacity, h, ONE),
        "nvmlDeviceCreateGpuInstance": refused(nvml.nvmlDeviceCreateGpuInstance, h, ONE),
        "nvmlDeviceCreateGpuInstanceWithPlacement": refused(place, ONE, 6),
        "nvmlGpuInstanceCreateComputeInstance": refused(nvml.nvmlGpuInstanceCreateComputeInstance, instance, 0),
        "nvmlGpuInstanceGetComputeInstanceById": refused(nvml.nvmlGpuInstanceGetComputeInstanceById, instance, 0),
        "nvmlComputeInstanceDestroy": refused(nvml.nvmlComputeInstanceDestroy, compute),
        "nvmlGpuInstanceDestroy": refused(nvml.nvmlGpuInstanceDestroy, instance),
    }
instance = place(ONE, 2)
compute = nvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
state = json.load(open(sys.argv[1].replace("libnvidia-ml.so.1", "nvml.json")))
state["access"] = ACCESS
open(sys.argv[1].replace("libnvidia-ml.so.1", "nvml.json"), "w").write(json.dumps(state) + "\\n" * 7)
report(every_call(instance, compute))
"""
UNPRIVILEGED = {
    "nvmlDeviceGetGpuInstanceProfileInfo",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetAttributes",
}


@pytest.mark.parametrize(
    ("access", "permitted"),
    [
        ({"admin": False, "config": False, "monitor": False}, UNPRIVILEGED),
        ({"admin": False, "config": False, "monitor": True}, {*UNPRIVILEGED, "nvmlDeviceGetMemoryInfo"}),
        ({"admin": False, "config": True, "monitor": False}, {"nvmlDeviceSetMigMode", "nvmlDeviceGetMemoryInfo"}),
        ({"admin": True, "config": False, "monitor": False}, {"nvmlDeviceGetMemoryInfo"}),
    ],
)
def test_each_call_needs_its_permission(
    tmp_path: Path, program: Callable[..., Any], access: dict[str, bool], permitted: set[str]
) -> None:
    """The last two rows list what is refused: with the permission to change MIG nearly everything is allowed."""
    build_machine(PAIR, tmp_path / "pair")
    reported = program(tmp_path / "pair", MIG + CALLS.replace("ACCESS", repr(access)))
    refused = {name for name, no in reported.items() if no}
    assert refused == (permitted if access["admin"] or access["config"] else reported.keys() - permitted)


def test_the_tree_shows_the_capabilities_of_the_processes(tmp_path: Path) -> None:
    root = tmp_path / "pair"
    build_machine(PAIR, root)
    config = root / "proc/driver/nvidia/capabilities/mig/config"
    minors = (root / "proc/driver/nvidia-caps/mig-minors").read_text().splitlines()
    assert minors[:3] == ["config 1", "monitor 2", "gpu0/gi0/access 3"]
    # gpu3/gi3/ci3/access is 439 on a real host (dra-driver-nvidia-gpu, internal/common/nvcaps.go).
    assert "gpu1/gi0/access 138" in minors and len(minors) == 2 + 2 * 15 * 9
    inject.set_access(root, Access(admin=False, config=False, monitor=False, instances=False), PAIR)
    assert not config.exists() and not (root / "dev/nvidia-caps/nvidia-cap1").exists()
    assert not (root / "proc/driver/nvidia/capabilities/gpu0").exists()
    assert nvml.read(root / "lib").access == Access(admin=False, config=False, monitor=False, instances=False)
    build_machine(PAIR, root)
    assert not config.exists(), "a later build keeps it"
    inject.set_access(root, Access(), PAIR)
    assert config.exists() and (root / "proc/driver/nvidia/capabilities/gpu0").is_dir()


def test_instances_of_a_covered_procfs_have_nodes_and_no_folders(tmp_path: Path, program: Callable[..., Any]) -> None:
    root = tmp_path / "pair"
    build_machine(PAIR, root)
    inject.set_access(root, Access(instances=False), PAIR)
    program(root, MIG + "device(place(ONE, 2))\nreport(0)")
    made = {path.name for path in (root / "dev/nvidia-caps").iterdir()} - {"nvidia-cap1", "nvidia-cap2"}
    assert len(made) == 2
    assert not (root / "proc/driver/nvidia/capabilities/gpu0").exists()
    inject.reset(root, "0", PAIR)
    assert {path.name for path in (root / "dev/nvidia-caps").iterdir()} == {"nvidia-cap1", "nvidia-cap2"}


def test_permissions_of_a_container_depend_on_the_runtime() -> None:
    assert Container("legacy", mig_monitor=True).access() is None, "the runtime refuses to start it"
    assert Container("cdi", mig_config=True).access() is None
    assert Container("cdi-before-1.20.1", mig_config=True).access() == Access(
        admin=False, config=False, monitor=False
    ), "the variables are ignored"
    assert Container("legacy", sys_admin=True, mig_monitor=True).access() == Access(
        admin=True, config=False, monitor=True, instances=False
    )
    assert Container("driver-container", privileged=True).access() == Access()
    assert host_service(sys_admin=False) == Access(admin=False)
