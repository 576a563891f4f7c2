"""Reports of the simulated nvidia-smi, `-q -x`, `-L` and `--query-gpu`, with the values that its NVML library returns.

Elements and texts follow nvidia-smi(1); `-q -x` has the elements that programs of this project read.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from dra_simulate import nvml

_NOT_AVAILABLE = "N/A"
_BRANDS = {1: "Quadro", 2: "Tesla", 5: "GeForce", 12: "Quadro RTX", 13: "NVIDIA RTX", 14: "NVIDIA", 15: "GeForce RTX"}
_ARCHITECTURES = {5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada Lovelace", 9: "Hopper", 10: "Blackwell"}
_COMPUTE_MODES = {0: "Default", 1: "Exclusive_Thread", 2: "Prohibited", 3: "Exclusive_Process"}
_FIRST_MIG_DEVICES = 16


def report(root: Path, arguments: Sequence[str]) -> str | None:
    """Return the output for these arguments; None where they are not a report."""
    match arguments:
        case ["-q", "-x"]:
            return "\n".join(_xml(_Library(root)))
        case ["-L"]:
            return "\n".join(_list(_Library(root)))
        case [query, "--format=csv,noheader,nounits"] if query.startswith("--query-gpu="):
            library = _Library(root)
            names = query.partition("=")[2].split(",")
            rows = [[_field(library, gpu, name) for name in names] for gpu in library.gpus()]
            return "\n".join(", ".join(row) for row in rows)
    return None


class _Library:
    """The library of one host, loaded into this process."""

    def __init__(self, root: Path) -> None:
        import pynvml

        self.module: Any = pynvml
        pynvml.nvmlLib = ctypes.CDLL(str(root / "lib" / nvml.LIBRARY))
        pynvml.nvmlInit()

    def gpus(self) -> list[Any]:
        """Return the handles of all GPUs."""
        return [self.module.nvmlDeviceGetHandleByIndex(index) for index in range(self.module.nvmlDeviceGetCount())]

    def ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Make a call; None where the library returns an error."""
        try:
            return call(*arguments)
        except self.module.NVMLError:
            return None

    def mig_devices(self, gpu: Any) -> list[Any]:
        """Return the handles of a GPU's MIG devices."""
        found = (
            self.ask(self.module.nvmlDeviceGetMigDeviceHandleByIndex, gpu, index) for index in range(_FIRST_MIG_DEVICES)
        )
        return [handle for handle in found if handle is not None]


def _xml(library: _Library) -> Iterator[str]:
    module, gpus = library.module, library.gpus()
    cuda = module.nvmlSystemGetCudaDriverVersion_v2()
    yield '<?xml version="1.0" ?>'
    yield '<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">'
    yield "<nvidia_smi_log>"
    yield f"<driver_version>{module.nvmlSystemGetDriverVersion()}</driver_version>"
    yield f"<cuda_version>{cuda // 1000}.{cuda % 1000 // 10}</cuda_version>"
    yield f"<attached_gpus>{len(gpus)}</attached_gpus>"
    for gpu in gpus:
        current, pending = _mig_mode(library, gpu)
        yield f'<gpu id="{_bus_id(library, gpu)}">'
        yield _element("product_name", library.ask(module.nvmlDeviceGetName, gpu))
        brand = library.ask(module.nvmlDeviceGetBrand, gpu)
        yield _element("product_brand", _BRANDS.get(brand))
        architecture = library.ask(module.nvmlDeviceGetArchitecture, gpu)
        yield _element("product_architecture", _ARCHITECTURES.get(architecture))
        yield f"<mig_mode>{_element('current_mig', current)}{_element('pending_mig', pending)}</mig_mode>"
        yield from _mig(library, gpu)
        yield _element("serial", library.ask(module.nvmlDeviceGetSerial, gpu))
        yield _element("uuid", module.nvmlDeviceGetUUID(gpu))
        yield _element("minor_number", library.ask(module.nvmlDeviceGetMinorNumber, gpu))
        memory = library.ask(module.nvmlDeviceGetMemoryInfo, gpu)
        total = None if memory is None else f"{memory.total >> 20} MiB"
        yield f"<fb_memory_usage>{_element('total', total)}</fb_memory_usage>"
        yield "</gpu>"
    yield "</nvidia_smi_log>"


def _mig(library: _Library, gpu: Any) -> Iterator[str]:
    """Elements of MIG devices have numbers but not UUIDs, which `-L` prints."""
    devices = library.mig_devices(gpu)
    if not devices:
        yield "<mig_devices>None</mig_devices>"
        return
    yield "<mig_devices>"
    for index, device in enumerate(devices):
        yield f"<mig_device>{_element('index', index)}"
        yield _element("gpu_instance_id", library.module.nvmlDeviceGetGpuInstanceId(device))
        yield _element("compute_instance_id", library.module.nvmlDeviceGetComputeInstanceId(device))
        yield "</mig_device>"
    yield "</mig_devices>"


def _list(library: _Library) -> Iterator[str]:
    module = library.module
    for index, gpu in enumerate(library.gpus()):
        yield f"GPU {index}: {module.nvmlDeviceGetName(gpu)} (UUID: {module.nvmlDeviceGetUUID(gpu)})"
        for number, device in enumerate(library.mig_devices(gpu)):
            profile = module.nvmlDeviceGetName(device).rpartition(" MIG ")[2]
            yield f"  MIG {profile:<12}Device {number:2}: (UUID: {module.nvmlDeviceGetUUID(device)})"


def _field(library: _Library, gpu: Any, name: str) -> str:
    module = library.module
    switch = ("Disabled", "Enabled")
    calls: dict[str, Callable[[], Any]] = {
        "pci.bus_id": lambda: _bus_id(library, gpu),
        "persistence_mode": lambda: switch[module.nvmlDeviceGetPersistenceMode(gpu)],
        "compute_mode": lambda: _COMPUTE_MODES[module.nvmlDeviceGetComputeMode(gpu)],
        "mig.mode.current": lambda: _mig_mode(library, gpu)[0],
        "mig.mode.pending": lambda: _mig_mode(library, gpu)[1],
        "ecc.mode.current": lambda: switch[module.nvmlDeviceGetEccMode(gpu)[0]],
        "ecc.mode.pending": lambda: switch[module.nvmlDeviceGetEccMode(gpu)[1]],
        "power.limit": lambda: f"{module.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000:.2f}",
        "driver_version": module.nvmlSystemGetDriverVersion,
        "memory.total": lambda: module.nvmlDeviceGetMemoryInfo(gpu).total >> 20,
        # Without the memory that the driver reserves: nvidia-smi(1), memory.used and memory.reserved.
        "memory.used": lambda: module.nvmlDeviceGetMemoryInfo(gpu, version=module.nvmlMemory_v2).used >> 20,
        "utilization.gpu": lambda: module.nvmlDeviceGetUtilizationRates(gpu).gpu,
        "utilization.memory": lambda: module.nvmlDeviceGetUtilizationRates(gpu).memory,
        "power.draw": lambda: f"{module.nvmlDeviceGetPowerUsage(gpu) / 1000:.2f}",
        "temperature.gpu": lambda: module.nvmlDeviceGetTemperature(gpu, module.NVML_TEMPERATURE_GPU),
        "clocks.sm": lambda: module.nvmlDeviceGetClockInfo(gpu, module.NVML_CLOCK_SM),
        "clocks.mem": lambda: module.nvmlDeviceGetClockInfo(gpu, module.NVML_CLOCK_MEM),
        "compute_cap": lambda: ".".join(map(str, module.nvmlDeviceGetCudaComputeCapability(gpu))),
        "uuid": lambda: module.nvmlDeviceGetUUID(gpu),
    }
    value = library.ask(calls[name]) if name in calls else None
    return "[N/A]" if value is None else str(value)


def _mig_mode(library: _Library, gpu: Any) -> tuple[str | None, str | None]:
    modes = library.ask(library.module.nvmlDeviceGetMigMode, gpu)
    if modes is None:
        return None, None
    current, pending = ("Enabled" if mode else "Disabled" for mode in modes)
    return current, pending


def _bus_id(library: _Library, gpu: Any) -> str:
    bus_id = library.module.nvmlDeviceGetPciInfo(gpu).busId
    return bus_id.decode() if isinstance(bus_id, bytes) else str(bus_id)


def _element(name: str, value: object) -> str:
    return f"<{name}>{escape(_NOT_AVAILABLE if value is None else str(value))}</{name}>"
