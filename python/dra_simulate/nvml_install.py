"""Installs the simulated NVML library on a host, with the state from a machine's description."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

import msgspec

from dra_agent.errors import PermanentError
from dra_simulate import system
from dra_simulate.machine import Function, Machine, NvidiaDriver
from dra_simulate.models import NVIDIA_BRAND_SINCE, GpuModel
from dra_simulate.nvml import LIBRARY, Access, Driver, Gpu, Link, MigProfile, NvLink, NvmlState, Pci, read, write
from dra_simulate.pci import sites
from dra_simulate.roles.nvidia import FAR_SWITCH, NvidiaGpu
from dra_simulate.tree import replace_file

BUILT_LIBRARY = Path(__file__).parent / "lib" / LIBRARY
"""The library that `make build` builds; every simulated host gets a copy."""
LIMITS_SINCE = 13040
"""The first CUDA version with drivers that limit a control group's memory."""
FABRIC_4_SINCE = 615
"""The first driver branch with nvmlDeviceGetGpuFabricInfo_v4 (change log of NVML)."""
_GPU, _SWITCH = 0, 2
"""NVML_NVLINK_DEVICE_TYPE_GPU and _SWITCH."""
MEMORY_LIMITS = ("nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1")
FABRIC_4 = ("nvmlDeviceGetGpuFabricInfo_v4",)


def install(machine: Machine, present: Machine, folder: Path, access: Access) -> None:
    """Write library and state to a host's directory; faults, processes and loads of an existing state are kept.

    A state that cannot be read is replaced.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if machine.nvidia is not None or BUILT_LIBRARY.exists():
        install_library(folder, missing=_missing(machine))
    state = describe(machine, {function.address for function, _ in present.with_role(NvidiaGpu)})
    state = msgspec.structs.replace(state, access=access)
    if present.nvidia is None:
        state = msgspec.structs.replace(state, driver=None)
    try:
        old = read(folder)
    except PermanentError:
        write(folder, state)
        return
    state = msgspec.structs.replace(
        state,
        faults=old.faults,
        events=old.events,
        conditions=old.conditions,
        processes=old.processes,
        loads=old.loads,
        latency=old.latency,
        memory_limits=old.memory_limits,
    )
    if state != old:
        write(folder, state)


def describe(machine: Machine, present: set[str]) -> NvmlState:
    """The state of a machine; the GPUs at these addresses are plugged in and bound to NVIDIA's driver."""
    nvidia = machine.nvidia
    driver = None
    if nvidia is not None:
        driver = Driver(nvidia.version, f"12.{nvidia.version}", nvidia.cuda, nvidia.profiles_need_mig, nvidia.id_seed)
    functions = {function.address: function for function in machine.functions()}
    paths = dict(_paths(machine))
    gpus = tuple(
        _gpu(machine, function, role, functions, paths[function.address], function.address in present)
        for function, role in machine.with_role(NvidiaGpu)
    )
    return NvmlState(format=1, driver=driver, devices=gpus)


def _gpu(
    machine: Machine,
    function: Function,
    role: NvidiaGpu,
    functions: dict[str, Function],
    path: tuple[str, ...],
    present: bool,
) -> Gpu:
    model, link = role.model, function.link
    bridge = next(bridge for bridge in machine.bridges if bridge.name == path[0])
    numa_node = bridge.numa_node if function.numa_node is None else function.numa_node
    return Gpu(
        uuid=role.uuid,
        pci=_pci(function),
        minor=role.minor,
        name=model.name,
        brand=_brand(model, machine),
        architecture=model.architecture,
        compute_capability=model.compute_capability,
        serial=role.serial,
        vbios=model.vbios,
        part_number=model.part_number,
        memory_bytes=model.memory_bytes,
        reserved_bytes=model.reserved_bytes,
        bar1_bytes=model.bar1_bytes,
        multiprocessors=model.multiprocessors,
        cores=model.cores,
        copy_engines=model.copy_engines,
        decoders=model.decoders,
        encoders=model.encoders,
        power_limit_watts=model.power_limit_watts,
        ecc=model.ecc,
        link=Link(link.generation, link.width, link.max_generation or link.generation, link.max_width or link.width)
        if link
        else Link(0, 0, 0, 0),
        numa_node=numa_node,
        cpus=system.words(system.local(machine, numa_node)),
        path=path,
        nvlinks=tuple(_nvlink(None if end == FAR_SWITCH else functions[end]) for end in role.nvlinks),
        nvlink_slots=model.nvlinks,
        fabric=role.fabric,
        mig=tuple(MigProfile(**dataclasses.asdict(profile)) for profile in model.mig),
        present=present,
        virtualization=role.virtualization,
    )


def _branch(driver: NvidiaDriver) -> int:
    """Return the branch of a driver: 615 of 615.71.05."""
    return int(driver.version.partition(".")[0])


def _brand(model: GpuModel, machine: Machine) -> int:
    branch = _branch(machine.nvidia) if machine.nvidia else NVIDIA_BRAND_SINCE
    return model.brand if model.old_brand is None or branch >= NVIDIA_BRAND_SINCE else model.old_brand


def _nvlink(remote: Function | None) -> NvLink:
    if remote is None:
        return NvLink(Pci("", 0, 0), _SWITCH)
    is_gpu = any(isinstance(role, NvidiaGpu) for role in remote.roles)
    return NvLink(_pci(remote), _GPU if is_gpu else _SWITCH)


def _pci(function: Function) -> Pci:
    pci = function.id
    return Pci(function.address, pci.device << 16 | pci.vendor, pci.subsystem_device << 16 | pci.subsystem_vendor)


def _paths(machine: Machine) -> list[tuple[str, tuple[str, ...]]]:
    return [
        (site.function.address, (bridge.name, *site.path.removeprefix(f"{bridge.path}/").split("/")))
        for bridge in machine.bridges
        for site in sites(machine, bridge)
    ]


def _missing(machine: Machine) -> tuple[str, ...]:
    """Return the functions that the driver's library does not have yet."""
    nvidia = machine.nvidia
    if nvidia is None:
        return MEMORY_LIMITS + FABRIC_4
    return (() if nvidia.cuda >= LIMITS_SINCE else MEMORY_LIMITS) + (
        () if _branch(nvidia) >= FABRIC_4_SINCE else FABRIC_4
    )


def install_library(folder: Path, *, missing: Iterable[str]) -> None:
    """Put the library into a host's folder, without the functions that are `missing` in an older library.

    Raises PermanentError if this installation does not contain the library.
    """
    target = folder / LIBRARY
    if not BUILT_LIBRARY.exists():
        raise PermanentError(
            "the simulated NVML library is not part of this installation",
            where=str(BUILT_LIBRARY),
            hint="in a container, use the debug variant of the image; in a checkout, run `make build`",
        )
    content = BUILT_LIBRARY.read_bytes()
    for name in map(str.encode, missing):
        # A name with a wrong hash is never found.
        content = content.replace(name, name[::-1])
    # A copy and never a link: the dynamic loader knows a library by its inode, and two simulated hosts in one process
    # must be two libraries.
    if not target.exists() or target.read_bytes() != content:
        replace_file(target, content)
