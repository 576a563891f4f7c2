"""State file of the simulated NVML library: its GPUs, and their faults.

The library is the Rust crate `nvml-fake`; it reads `nvml.json` next to it whenever the file changes.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from dra_agent.errors import PermanentError
from dra_agent.simulate.tree import replace_file

LIBRARY = "libnvidia-ml.so.1"
STATE = "nvml.json"
_LOCK = "nvml.lock"
NO_INSTANCE = 0xFFFF_FFFF
"""In place of an instance's number: the whole GPU."""


class Driver(msgspec.Struct, frozen=True):
    """Versions; CUDA's as NVML encodes it (12080 is 12.8)."""

    version: str
    nvml_version: str
    cuda: int
    profiles_need_mig: bool = False
    """True if nvmlDeviceGetGpuInstanceProfileInfoV is NOT_SUPPORTED while MIG mode is off, as nvml.h states."""
    id_seed: int = 0
    """Determines the numbers of MIG instances, together with the UUID of the GPU; 0: compute instances count from 0."""


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
    """One NVLink: the PCI function at its other end, and that function's kind as NVML numbers it (0 GPU, 2 switch).

    A switch in another chassis has an empty address.
    """

    remote: Pci
    kind: int


class MigProfile(msgspec.Struct, frozen=True):
    """A GPU instance profile; see simulate.models."""

    profile: int
    id: int
    name: str
    slices: int
    max_instances: int = msgspec.field(name="most")
    memory_mib: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpeg: int
    ofa: int
    placements: tuple[tuple[int, int], ...]


class Gpu(msgspec.Struct, frozen=True):
    """One GPU: its properties (from the machine), and `present`."""

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
    """CPUs near the GPU as 64-bit words, lowest first."""
    path: tuple[str, ...]
    """Host bridge and PCI addresses on the path to the GPU, which determine its distance to others."""
    nvlinks: tuple[NvLink, ...]
    nvlink_slots: int
    fabric: tuple[str, int] | None
    mig: tuple[MigProfile, ...]
    present: bool = True
    virtualization: int = 0
    """nvmlGpuVirtualizationMode_t: 0 bare metal, 1 passed through, 2 a vGPU in its guest."""


class Fault(msgspec.Struct, frozen=True, omit_defaults=True):
    """A fault of a call. `function` and `device` (a UUID) of None match all.

    In this order: it waits `delay_ms`; it hangs (`hang`) until the fault is cleared; a process is killed (`kill`): the
    one that has loaded the library, or its parent too, the agent; it returns `code`, NVML's error number.
    """

    function: str | None = None
    device: str | None = None
    delay_ms: int = 0
    hang: bool = False
    code: int | None = None
    kill: Literal["library", "agent"] | None = None
    times: int | None = None
    """The number of further calls that fail; None: all."""
    when: Literal["before", "after"] = "before"
    """Before the call takes effect, or after that, but before its response."""


class Event(msgspec.Struct, frozen=True):
    """Something that event sets report: NVML's event type bit and its data (for an XID, its number)."""

    sequence: int
    device: str
    kind: int
    data: int
    gpu_instance: int = NO_INSTANCE
    compute_instance: int = NO_INSTANCE


class FabricCondition(msgspec.Struct, frozen=True):
    """Registration of a GPU with its NVLink fabric; numbers as in nvmlGpuFabricInfo_v3_t."""

    state: int
    """1 not started, 2 in progress, 3 completed."""
    status: int = 0
    """nvmlReturn_t; defined once the state is completed."""
    health_mask: int = 0
    health_summary: int = 0


class Condition(msgspec.Struct, frozen=True):
    """The changing values of a running GPU. Temperature in degrees Celsius, utilization in percent (GPU, memory)."""

    persistence_mode: bool = True
    compute_mode: int = 0
    temperature: int = 34
    power_milliwatts: int = 71_000
    utilization: tuple[int, int] = (0, 0)
    energy_millijoules: int = 0
    """Since the driver was loaded."""
    sm_clock_mhz: int = 345
    memory_clock_mhz: int = 1593
    clock_event_reasons: int = 1
    """Bits of nvmlClocksEventReason*; 1 is idle."""
    ecc_corrected: int = 0
    ecc_uncorrected: int = 0
    nvlink_kibibytes: tuple[int, int] = (0, 0)
    """Transmitted and received by all links, like those of PCIe."""
    pcie_bytes: tuple[int, int] = (0, 0)
    remapped_rows: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Corrected, uncorrected, pending, failed."""
    recovery_action: int = 0
    """nvmlDeviceGpuRecoveryAction_t; drivers before 565 do not report it."""
    fabric: FabricCondition | None = None
    """None: completed, if the GPU has a fabric."""
    nvlinks_down: tuple[int, ...] = ()
    """Numbers of links that are not active."""
    gpm: dict[int, tuple[int, float | None]] = {}
    """Return codes and values of metrics of GPM by their number, in place of those that are played; None: NaN."""


class Process(msgspec.Struct, frozen=True):
    """A process that computes on a GPU (by its UUID), or on a MIG instance of it."""

    device: str
    pid: int
    memory_bytes: int
    gpu_instance: int = NO_INSTANCE
    compute_instance: int = NO_INSTANCE
    cgroup: str | None = None
    utilization: tuple[int, int] = (0, 0)
    """Average of the GPU and of its memory in percent; without both, the driver has no sample of the process."""
    sampled_at_us: int | None = None
    """When the driver took the sample, in microseconds since the epoch; None: at the time of each call."""


class LoadStep(msgspec.Struct, frozen=True):
    """Values of a GPU from a moment of a schedule on; utilization in percent (GPU, memory)."""

    at_ms: int
    utilization: tuple[int, int] = (0, 0)
    memory_bytes: int = 0
    power_milliwatts: int = 0
    activity: tuple[int, int, int] | None = None
    """Multiprocessors, tensor operations and bandwidth of memory in percent, which GPM reports.

    None: multiprocessors and memory as the utilization, without tensor operations.
    """


class Load(msgspec.Struct, frozen=True):
    """A schedule that a GPU (by its UUID) plays, or a MIG instance of it: then memory, utilization and activity only.

    The values of a step hold until the next one; those of the last one stay. Energy is the integral of the power.
    """

    device: str
    started_at_ms: int
    """When the schedule began, in milliseconds since the epoch."""
    steps: tuple[LoadStep, ...]
    gpu_instance: int = NO_INSTANCE


class MemoryLimit(msgspec.Struct, frozen=True):
    """The memory limit of a cgroup on a GPU, in bytes; with `folder` only while that directory exists."""

    soft: int
    hard: int
    folder: bool = False


class Latency(msgspec.Struct, frozen=True):
    """Durations of calls, in milliseconds."""

    init_ms_per_gpu: int = 0
    """nvmlInit, for each GPU."""
    gpu_start_ms: int = 0
    """The first lookup of a GPU in a process, one GPU after the other, unless persistence mode is on."""
    calls_ms: dict[str, int] = {}
    """Every call of a function, by its name without version."""


class Access(msgspec.Struct, frozen=True, omit_defaults=True):
    """Permissions of the processes that use the library; `simulate.container` has the usual cases.

    With everything, as root on the host.
    """

    admin: bool = True
    """True if they have CAP_SYS_ADMIN."""
    config: bool = True
    """True if they can open the capability mig/config."""
    monitor: bool = True
    """True if they can open the capability mig/monitor."""
    instances: bool = True
    """True if they see the capabilities of MIG instances below /proc/driver/nvidia/capabilities."""


class NvmlState(msgspec.Struct, frozen=True):
    """The whole file. A driver of None means that none is loaded: nvmlInit then fails."""

    format: int
    driver: Driver | None
    devices: tuple[Gpu, ...]
    faults: tuple[Fault, ...] = ()
    events: tuple[Event, ...] = ()
    conditions: dict[str, Condition] = {}
    """By UUID; a GPU that is not named is in the default condition."""
    processes: tuple[Process, ...] = ()
    latency: Latency = Latency()
    memory_limits: dict[str, dict[str, MemoryLimit]] = {}
    """By UUID and control group."""
    access: Access = Access()
    loads: tuple[Load, ...] = ()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of the state's writers, which the library takes too."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_foreign(root: Path) -> bool:
    """Return whether a directory holds something that is neither a simulated host nor the start of one.

    The lock is the first file of a host, so another process may be building one where it exists.
    """
    lib = root / "lib"
    has_files = root.is_dir() and any(path != lib or not lib.is_dir() or any(lib.iterdir()) for path in root.iterdir())
    return has_files and not (lib / _LOCK).exists()


def read(folder: Path) -> NvmlState:
    """Read the state in a host's lib directory; PermanentError if the file is not valid."""
    path = folder / STATE
    try:
        return msgspec.json.decode(path.read_bytes(), type=NvmlState)  # noqa: TID251 - a file of the simulated host
    except (FileNotFoundError, msgspec.MsgspecError) as error:
        raise PermanentError(
            f"not a state of simulated GPUs: {error}", where=str(path), hint="build the host again"
        ) from None


def write(folder: Path, state: NvmlState) -> None:
    """Replace the state; the library reads it at its next call."""
    replace_file(folder / STATE, msgspec.json.format(msgspec.json.encode(state), indent=1) + b"\n")
