from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from dra_agent.diagnostic import Diagnostic
from dra_agent.errors import RetryableError
from dra_agent.host import Host
from dra_agent.inventory.nvidia.backend import NvidiaBackend
from dra_agent.inventory.nvidia.nvml_client import GpuLostError, NotSupportedError, UnknownGpuError
from dra_agent.topology import DeviceKind, PciFunction

Write = Callable[[str, object], None]
CAPABILITIES = "proc/driver/nvidia/capabilities/gpu2/mig"


class MigLibrary:
    """Answers as NVML does for an H100 in MIG mode: instances by (GPU instance, compute instance, profile, start)."""

    module = pynvml
    is_running = False
    generation = 1

    def __init__(self, *instances: tuple[int, int, str, int]) -> None:
        self.instances = instances
        self.broken = self.silent = False

    def start(self) -> None:
        if self.silent:
            raise RetryableError("no answer")

    def close(self) -> None: ...

    def expect(self, gpus: int) -> None: ...

    def drop_failed(self) -> None: ...

    def is_hung(self, about: str) -> bool:
        return False

    def call(self, name: str, *arguments: Any, about: str = "") -> Any:
        on = arguments[0] if arguments else None
        if isinstance(on, tuple):
            _, _, profile, start = on
            return {
                "nvmlDeviceGetGpuInstanceId": on[0],
                "nvmlDeviceGetComputeInstanceId": on[1],
                "nvmlDeviceGetName": f"NVIDIA H100 80GB HBM3 MIG {profile}",
                "nvmlDeviceGetUUID": f"MIG-{on[0]}-{on[1]}",
                "nvmlGpuInstanceGetInfo": SimpleNamespace(placement=SimpleNamespace(start=start)),
                "nvmlDeviceGetAttributes_v2": SimpleNamespace(
                    multiprocessorCount=16,
                    sharedCopyEngineCount=1,
                    sharedDecoderCount=1,
                    sharedEncoderCount=0,
                    sharedJpegCount=1,
                    sharedOfaCount=0,
                    memorySizeMB=9856,
                ),
            }[name]
        if name == "nvmlDeviceGetMigDeviceHandleByIndex":
            if self.broken:
                raise GpuLostError("GPU is lost", 15)
            if arguments[1] < len(self.instances):
                return self.instances[arguments[1]]
            raise UnknownGpuError("Not Found", 6)
        if name == "nvmlDeviceGetGpuInstanceById":
            return next(instance for instance in self.instances if instance[0] == arguments[1])
        answers = {
            "nvmlDeviceGetHandleByPciBusId": "gpu",
            "nvmlSystemGetDriverVersion": "570.124.06",
            "nvmlSystemGetCudaDriverVersion_v2": 12080,
            "nvmlDeviceGetMigMode": [1, 1],
            "nvmlDeviceGetMaxMigDeviceCount": 7,
            "nvmlDeviceGetCudaComputeCapability": (9, 0),
            "nvmlDeviceGetUUID": "GPU-1",
            "nvmlDeviceGetName": "NVIDIA H100 80GB HBM3",
            "nvmlDeviceGetMinorNumber": 2,
            "nvmlDeviceGetArchitecture": 9,
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=80 << 30),
        }
        if name not in answers:
            raise NotSupportedError(name, 3)
        return answers[name]


@pytest.fixture
def backend(host: Host, monkeypatch: pytest.MonkeyPatch) -> Callable[[MigLibrary], NvidiaBackend]:
    def make(library: MigLibrary) -> NvidiaBackend:
        monkeypatch.setattr("dra_agent.inventory.nvidia.backend.acquire", lambda source, timeout: library)
        return NvidiaBackend(host, 1.0)

    return make


@pytest.fixture
def gpu(function: Callable[..., PciFunction], write: Write) -> PciFunction:
    for path, minor in (("gi9/access", 84), ("gi9/ci0/access", 85), ("gi11/access", 102), ("gi11/ci1/access", 104)):
        write(f"{CAPABILITIES}/{path}", f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1")
    return function("0000:3b:00.0", DeviceKind.GPU, "0x10de", "0x2330", driver="nvidia")


def test_existing_instances_are_published_and_the_whole_gpu_is_not(
    backend: Callable[[MigLibrary], NvidiaBackend], gpu: PciFunction
) -> None:
    problems: list[Diagnostic] = []
    library = MigLibrary((9, 0, "1g.10gb", 4), (11, 1, "1c.2g.20gb", 2))
    first, second = backend(library).devices([gpu], problems)
    assert problems == []
    assert [first.name, second.name] == [
        "gpu-0000-3b-00-0-mig-1g-10gb-4",
        "gpu-0000-3b-00-0-mig-1c-2g-20gb-2-1",
    ]
    found = {name: attribute.value for name, attribute in first.attributes.items()}
    assert found["type"] == "mig"
    assert found["uuid"] == "MIG-9-0"
    assert found["parentUUID"] == "GPU-1"
    assert found["profile"] == "1g.10gb"
    assert found["memoryEnforcement"] == "mig"
    assert found["architecture"] == "Hopper"
    assert {name: capacity.value for name, capacity in first.capacity.items()} == {
        "memory": "9856Mi",
        "multiprocessors": "16",
        "copyEngines": "1",
        "decoders": "1",
        "jpegEngines": "1",
    }
    assert [node.path for node in first.nodes] == [
        "/dev/nvidia2",
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-caps/nvidia-cap84",
        "/dev/nvidia-caps/nvidia-cap85",
    ]
    assert second.nodes[-1].path == "/dev/nvidia-caps/nvidia-cap104"
    assert first.identity["parent"] == "gpu-0000-3b-00-0"


def test_compute_instances_of_one_gpu_instance_are_not_kept_out_of_each_other_s_memory(
    backend: Callable[[MigLibrary], NvidiaBackend], gpu: PciFunction, write: Write
) -> None:
    write(f"{CAPABILITIES}/gi11/ci0/access", "DeviceFileMinor: 103\nDeviceFileMode: 292\nDeviceFileModify: 1")
    library = MigLibrary((9, 0, "1g.10gb", 4), (11, 0, "1c.2g.20gb", 2), (11, 1, "1c.2g.20gb", 2))
    devices = backend(library).devices([gpu], [])
    enforcement = {device.name: device.attributes["memoryEnforcement"].value for device in devices}
    assert enforcement == {
        "gpu-0000-3b-00-0-mig-1g-10gb-4": "mig",
        "gpu-0000-3b-00-0-mig-1c-2g-20gb-2": "none",
        "gpu-0000-3b-00-0-mig-1c-2g-20gb-2-1": "none",
    }


def test_mig_mode_without_instances_is_a_warning(
    backend: Callable[[MigLibrary], NvidiaBackend], gpu: PciFunction
) -> None:
    problems: list[Diagnostic] = []
    without = backend(MigLibrary())
    assert without.devices([gpu], problems) == []
    (problem,) = problems
    assert "without MIG instances" in problem.message
    assert [(one.name, one.code) for one in without.withheld()] == [("gpu-0000-3b-00-0", "partition")]
    assert problem.severity == "warning"


def test_instances_stay_known_while_the_library_does_not_answer(
    backend: Callable[[MigLibrary], NvidiaBackend], gpu: PciFunction
) -> None:
    library = MigLibrary((9, 0, "1g.10gb", 4))
    made = backend(library)
    (before,) = made.devices([gpu], [])
    library.broken = True
    problems: list[Diagnostic] = []
    (after,) = made.devices([gpu], problems)
    assert after.to_api() == before.to_api()
    assert (before.health, after.health) == ("healthy", "unmonitored")
    assert len(problems) == 1


def test_a_divided_gpu_is_never_offered_as_a_whole_while_the_library_is_silent(
    backend: Callable[[MigLibrary], NvidiaBackend], gpu: PciFunction, write: Write
) -> None:
    write("proc/driver/nvidia/gpus/0000:3b:00.0/information", "Model: \t NVIDIA H100\nDevice Minor: \t 2")
    library = MigLibrary((9, 0, "1g.10gb", 4))
    library.silent = True
    problems: list[Diagnostic] = []
    assert backend(library).devices([gpu], problems) == []
    assert "its MIG instances are not known" in problems[-1].message
