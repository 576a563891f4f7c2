"""State of the simulated NVML library: what its GPUs are, and what has gone wrong with them.

The library itself is the Rust crate `nvml-fake`; it reads `nvml.json` beside it again whenever the file changes.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from dra_agent.errors import PermanentError
from dra_agent.simulate import cpulist
from dra_agent.simulate.machine import Function, Machine
from dra_agent.simulate.pci import sites
from dra_agent.simulate.roles.nvidia import NvidiaGpu
from dra_agent.simulate.tree import replace_file

LIBRARY = "libnvidia-ml.so.1"
STATE = "nvml.json"
BUILT_LIBRARY = Path(__file__).parent / "lib" / LIBRARY
"""Where `make build` puts the library; every simulated host gets a copy."""


class Driver(msgspec.Struct, frozen=True):
    """Versions; CUDA's as NVML gives it (12080 is 12.8)."""

    version: str
    nvml_version: str
    cuda: int


class Pci(msgspec.Struct, frozen=True):
    """Address and identity of a function; ids as NVML packs them (device << 16 | vendor)."""

    address: str
    device_id: int
    subsystem_id: int


class Link(msgspec.Struct, frozen=True):
    """A PCIe link: generation and width now and at most."""

    generation: int
    width: int
    max_generation: int
    max_width: int


class NvLink(msgspec.Struct, frozen=True):
    """One NVLink: the PCI function at its other end, and that function's kind as NVML numbers it (0 GPU, 2 switch)."""

    remote: Pci
    kind: int


class MigProfile(msgspec.Struct, frozen=True):
    """A GPU instance profile, see simulate.models."""

    profile: int
    id: int
    name: str
    slices: int
    most: int
    memory_mib: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpeg: int
    ofa: int
    placements: tuple[tuple[int, int], ...]


class Gpu(msgspec.Struct, frozen=True):
    """One GPU: what it is (from the machine), and `present`."""

    uuid: str
    pci: Pci
    minor: int
    name: str
    brand: int
    architecture: int
    compute_capability: tuple[int, int]
    serial: str
    vbios: str
    part_number: str
    memory_bytes: int
    reserved_bytes: int
    bar1_bytes: int
    multiprocessors: int
    cores: int
    copy_engines: int
    decoders: int
    encoders: int
    power_limit_watts: int
    ecc: bool
    link: Link
    numa_node: int
    cpus: tuple[int, ...]
    """Processors near the GPU as 64-bit words, lowest first."""
    path: tuple[str, ...]
    """Host bridge and PCI addresses that lead to the GPU, which tell its distance to others."""
    nvlinks: tuple[NvLink, ...]
    nvlink_slots: int
    fabric: tuple[str, int] | None
    mig: tuple[MigProfile, ...]
    present: bool = True


class Fault(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a call does instead of its work. `function` and `device` (a UUID) of None mean every one.

    One of: wait `delay_ms` and go on; `hang` until the fault is cleared; answer `code`, NVML's error number.
    """

    function: str | None = None
    device: str | None = None
    delay_ms: int = 0
    hang: bool = False
    code: int | None = None


class Event(msgspec.Struct, frozen=True):
    """Something that event sets report: NVML's event type bit and its data (for an XID, its number)."""

    sequence: int
    device: str
    kind: int
    data: int


class Condition(msgspec.Struct, frozen=True):
    """What changes about a GPU while it runs. Temperature in degrees Celsius, utilization in percent (GPU, memory)."""

    persistence_mode: bool = True
    compute_mode: int = 0
    temperature: int = 34
    power_milliwatts: int = 71_000
    utilization: tuple[int, int] = (0, 0)
    ecc_corrected: int = 0
    ecc_uncorrected: int = 0
    remapped_rows: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Corrected, uncorrected, pending, failed."""


class Process(msgspec.Struct, frozen=True):
    """A process that computes on a GPU (by its UUID)."""

    device: str
    pid: int
    memory_bytes: int


class State(msgspec.Struct, frozen=True):
    """The whole file. A driver of None means that none is loaded: nvmlInit then fails."""

    format: int
    driver: Driver | None
    devices: tuple[Gpu, ...]
    faults: tuple[Fault, ...] = ()
    events: tuple[Event, ...] = ()
    conditions: dict[str, Condition] = {}
    """By UUID; a GPU that is not named is in the default condition."""
    processes: tuple[Process, ...] = ()


def install(machine: Machine, present: Machine, folder: Path) -> None:
    """Put library and state into a host's folder; what happens to the GPUs of an existing state goes on happening.

    A state that cannot be read is replaced.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _install_library(machine, folder / LIBRARY)
    state = describe(machine, {function.address for function in present.functions()})
    try:
        old = read(folder)
    except PermanentError:
        write(folder, state)
        return
    state = msgspec.structs.replace(
        state, faults=old.faults, events=old.events, conditions=old.conditions, processes=old.processes
    )
    if state != old:
        write(folder, state)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep everybody else from changing the state meanwhile; the library takes the same lock where it writes."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "nvml.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def read(folder: Path) -> State:
    """The state in a host's lib folder; PermanentError where the file is no such state."""
    path = folder / STATE
    try:
        return msgspec.json.decode(path.read_bytes(), type=State)
    except (FileNotFoundError, msgspec.MsgspecError) as error:
        raise PermanentError(
            f"not a state of simulated GPUs: {error}", where=str(path), todo="build the host anew"
        ) from None


def write(folder: Path, state: State) -> None:
    """Replace the state; the library sees it at its next call."""
    replace_file(folder / STATE, msgspec.json.format(msgspec.json.encode(state), indent=1) + b"\n")


def describe(machine: Machine, present: set[str]) -> State:
    """The state of a machine of which the functions with these addresses are plugged in."""
    nvidia = machine.nvidia
    driver = None if nvidia is None else Driver(nvidia.version, f"12.{nvidia.version}", nvidia.cuda)
    functions = {function.address: function for function in machine.functions()}
    paths = dict(_paths(machine))
    gpus = tuple(
        _gpu(machine, function, role, functions, paths[function.address], function.address in present)
        for function, role in machine.with_role(NvidiaGpu)
    )
    return State(format=1, driver=driver, devices=gpus)


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
        brand=model.brand,
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
        cpus=cpulist.words(cpulist.local(machine, numa_node)),
        path=path,
        nvlinks=tuple(_nvlink(functions[remote]) for remote in role.nvlinks),
        nvlink_slots=model.nvlinks,
        fabric=role.fabric,
        mig=tuple(
            MigProfile(
                profile=profile.profile,
                id=profile.id,
                name=profile.name,
                slices=profile.slices,
                most=profile.most,
                memory_mib=profile.memory_mib,
                multiprocessors=profile.multiprocessors,
                copy_engines=profile.copy_engines,
                decoders=profile.decoders,
                encoders=0,
                jpeg=profile.jpeg,
                ofa=profile.ofa,
                placements=profile.placements,
            )
            for profile in model.mig
        ),
        present=present,
    )


def _nvlink(remote: Function) -> NvLink:
    is_gpu = any(isinstance(role, NvidiaGpu) for role in remote.roles)
    return NvLink(_pci(remote), 0 if is_gpu else 2)


def _pci(function: Function) -> Pci:
    pci = function.id
    return Pci(function.address, pci.device << 16 | pci.vendor, pci.subsystem_device << 16 | pci.subsystem_vendor)


def _paths(machine: Machine) -> list[tuple[str, tuple[str, ...]]]:
    return [
        (site.function.address, tuple(site.path.removeprefix("sys/devices/").split("/")))
        for bridge in machine.bridges
        for site in sites(machine, bridge, f"sys/devices/{bridge.name}")
    ]


def _install_library(machine: Machine, target: Path) -> None:
    if not BUILT_LIBRARY.exists():
        if machine.nvidia is None:
            return
        raise PermanentError(
            "the simulated NVML library is not built", where=str(BUILT_LIBRARY), todo="run `make build`"
        )
    content = BUILT_LIBRARY.read_bytes()
    # A copy and never a link: the dynamic loader knows a library by its inode, and two simulated hosts in one process
    # must be two libraries.
    if not target.exists() or target.read_bytes() != content:
        replace_file(target, content)
