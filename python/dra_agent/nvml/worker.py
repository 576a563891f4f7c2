"""The process that loads the library: reads calls, makes them, and writes responses. It exits with its agent.

One JSON object in a line, in both directions. A call has `id`, `lane`, `name` and `args`; calls of one lane are made
sequentially, and those of different lanes concurrently. A response has `id`, `filled` (the values that the call wrote
into its arguments: [position, bytes in hex]) and one of `value`, `refused` ([code, text] of NVML), `stale`, `missing`
(the library cannot be loaded), `busy` (the system has no room for a thread) and `defect`. The first response belongs to
no call and reports that the process runs.

The imports are few because each is memory of every node with a GPU.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from types import ModuleType

from dra_agent.malloc import limit_free_memory, trim
from dra_agent.nvml.values import Codec, Handles, StaleHandleError, targets
from dra_agent.threads import NoThreadError, start_thread

TYPE_CHECKING = False  # typing, which has it too, takes 0.5 MiB
if TYPE_CHECKING:
    from typing import Any

TRIM_INTERVAL_S = 60.0
"""Minimum seconds between two returns of free memory to the kernel."""


def has_memory_limits(module: Any) -> bool:
    """Return whether the library has the calls."""
    try:
        module._nvmlGetFunctionPointer("nvmlDeviceSetMemoryLimits_v1")  # noqa: SLF001 - pynvml has no public way to it
    except module.NVMLError:
        return False
    return True


def set_memory_limits(module: Any, device: Any, cgroup: str, soft: int, hard: int) -> None:
    """Set the minimum and maximum of the processes of a cgroup (its full path), in bytes."""
    limits = module.c_nvmlSetMemoryLimits_v1_t(os.fsencode(cgroup), soft, hard)
    module.nvmlDeviceSetMemoryLimits_v1(device, limits)


def get_memory_limits(module: Any, device: Any, cgroup: str) -> tuple[int, int, int]:
    """Return the guaranteed, maximum and used bytes."""
    limits = module.c_nvmlGetMemoryLimits_v1_t(os.fsencode(cgroup), 0, 0, 0)
    module.nvmlDeviceGetMemoryLimits_v1(device, limits)
    return limits.softLimit, limits.hardLimit, limits.currentUsed


def compute_processes(module: Any, device: Any) -> list[tuple[int, int | None]]:
    """Return the compute processes of a GPU: pid and bytes; None if the driver does not report the amount."""
    return [(process.pid, process.usedGpuMemory) for process in module.nvmlDeviceGetComputeRunningProcesses(device)]


def process_utilization(module: Any, device: Any, since_us: int) -> list[tuple[int, int, int, int]]:
    """Return pid, time in microseconds, and percent of the GPU and of its memory of processes that worked after a time.

    Empty if the driver reports that none did (NVML_ERROR_NOT_FOUND).
    """
    try:
        samples = module.nvmlDeviceGetProcessUtilization(device, since_us)
    except module.NVMLError as error:
        if error.value == module.NVML_ERROR_NOT_FOUND:
            return []
        raise
    return [(one.pid, one.timeStamp, one.smUtil, one.memUtil) for one in samples]


def read_telemetry(module: Any, device: Any) -> list[tuple[str, float]]:
    """Return the values that the driver has, in its own units; what it does not have is left out.

    One call for all values: a GPU costs one exchange with the agent. nvmlDeviceGetPcieThroughput is not among them: it
    measures for 20 ms, and the counters of PCIe have the same. Energy is in mJ since the driver was loaded, memory of
    MIG devices is their own (all: nvml.h).

    Raises:
        NVMLError: The GPU is lost or must be reset, or the device is unknown.
    """
    read: tuple[tuple[tuple[str, ...], Callable[[], Any]], ...] = (
        (("gpu_percent", "memory_percent"), lambda: _fields(module.nvmlDeviceGetUtilizationRates(device))),
        (("memory_used_bytes", "memory_limit_bytes"), lambda: _memory(module, device)),
        (("power_milliwatts",), lambda: [module.nvmlDeviceGetPowerUsage(device)]),
        (("power_limit_milliwatts",), lambda: [module.nvmlDeviceGetEnforcedPowerLimit(device)]),
        (("energy_millijoules",), lambda: [module.nvmlDeviceGetTotalEnergyConsumption(device)]),
        (("temperature_celsius",), lambda: [module.nvmlDeviceGetTemperature(device, 0)]),
        (("sm_clock_mhz",), lambda: [module.nvmlDeviceGetClockInfo(device, module.NVML_CLOCK_SM)]),
        (("memory_clock_mhz",), lambda: [module.nvmlDeviceGetClockInfo(device, module.NVML_CLOCK_MEM)]),
        (("clock_event_reasons",), lambda: [module.nvmlDeviceGetCurrentClocksEventReasons(device)]),
        (("ecc_corrected",), lambda: [module.nvmlDeviceGetTotalEccErrors(device, 0, 0)]),
        (("ecc_uncorrected",), lambda: [module.nvmlDeviceGetTotalEccErrors(device, 1, 0)]),
        (("nvlink_transmit_kibibytes",), lambda: [_counter(module, device, _NVLINK_TRANSMIT, _ALL_LINKS)]),
        (("nvlink_receive_kibibytes",), lambda: [_counter(module, device, _NVLINK_RECEIVE, _ALL_LINKS)]),
        (("pcie_transmit_bytes",), lambda: [_counter(module, device, _PCIE_TRANSMIT, 0)]),
        (("pcie_receive_bytes",), lambda: [_counter(module, device, _PCIE_RECEIVE, 0)]),
        (("pcie_replays",), lambda: [module.nvmlDeviceGetPcieReplayCounter(device)]),
    )
    ends = (module.NVML_ERROR_GPU_IS_LOST, module.NVML_ERROR_RESET_REQUIRED, module.NVML_ERROR_UNINITIALIZED)
    values: list[tuple[str, float]] = []
    refused: Any = None
    for names, call in read:
        try:
            values += zip(names, call(), strict=True)
        except module.NVMLError as error:
            if error.value in ends:
                raise
            refused = error
    if not values and refused is not None:
        raise refused
    return values


def read_nvlinks(module: Any, device: Any) -> list[tuple[int, str]]:
    """Return the active NVLinks of a GPU: the kind of the other end (nvmlIntNvLinkDeviceType_t) and its PCI address.

    -1 and "" where the driver does not report them, as of a switch in another chassis. A GPU without links has none.
    One call for all links: a GPU costs one exchange with the agent.

    Raises:
        NVMLError: The GPU is lost or must be reset, or the state of a link cannot be read.
    """
    links = []
    for link in range(_MAX_LINKS):
        try:
            is_active = module.nvmlDeviceGetNvLinkState(device, link)
        except module.NVMLError as error:
            if error.value == module.NVML_ERROR_INVALID_ARGUMENT:
                break
            if error.value != module.NVML_ERROR_NOT_SUPPORTED:
                raise
            continue
        if is_active:
            kind = _or_unknown(module, -1, module.nvmlDeviceGetNvLinkRemoteDeviceType, device, link)
            info = _or_unknown(module, None, module.nvmlDeviceGetNvLinkRemotePciInfo, device, link)
            links.append((kind, "" if info is None else _text_of(info.busId)))
    return links


def read_nvlink_peers(module: Any, device: Any, *others: Any) -> list[int]:
    """Return for each other GPU whether this one reaches its memory by NVLink: nvmlGpuP2PStatus_t, where 0 is yes.

    -1 where the driver does not report it.

    Raises:
        NVMLError: The GPU is lost or must be reset.
    """
    ask, nvlink = module.nvmlDeviceGetP2PStatus, module.NVML_P2P_CAPS_INDEX_NVLINK
    return [_or_unknown(module, -1, ask, device, other, nvlink) for other in others]


def _or_unknown(module: Any, unknown: Any, call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except module.NVMLError as error:
        if error.value in (module.NVML_ERROR_GPU_IS_LOST, module.NVML_ERROR_RESET_REQUIRED):
            raise
        return unknown


def _text_of(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


_MAX_LINKS = 64
"""More than a GPU has (NVML_NVLINK_MAX_LINKS is 18): the driver refuses the first one that it does not know."""
_NVLINK_TRANSMIT, _NVLINK_RECEIVE, _PCIE_TRANSMIT, _PCIE_RECEIVE = 138, 139, 197, 198
"""NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and _RX, in KiB; NVML_FI_DEV_PCIE_COUNT_TX_BYTES and _RX_BYTES (nvml.h)."""
_ALL_LINKS = 0xFFFF_FFFF
"""In place of a link: the sum of all."""
_64_BITS = (2, 3)
"""NVML_VALUE_TYPE_UNSIGNED_LONG and _UNSIGNED_LONG_LONG. A counter of 32 bits wraps between two samples."""


def _counter(module: Any, device: Any, field: int, scope: int) -> int:
    (found,) = module.nvmlDeviceGetFieldValues(device, [(field, scope)])
    if found.nvmlReturn != module.NVML_SUCCESS:
        raise module.NVMLError(found.nvmlReturn)
    if found.valueType not in _64_BITS:
        raise module.NVMLError(module.NVML_ERROR_NOT_SUPPORTED)
    return int(found.value.ullVal)


def _fields(utilization: Any) -> tuple[int, int]:
    return utilization.gpu, utilization.memory


def _memory(module: Any, device: Any) -> tuple[int, int]:
    memory = module.nvmlDeviceGetMemoryInfo(device, version=module.nvmlMemory_v2)
    return memory.used, memory.total


_OWN = (
    *(has_memory_limits, set_memory_limits, get_memory_limits, compute_processes, process_utilization, read_telemetry),
    *(read_nvlinks, read_nvlink_peers),
)
CALLS = {call.__name__: call for call in _OWN}
_LOADED_ON_USE = {"read_gpm": "dra_agent.nvml.gpm", "release_gpm": "dra_agent.nvml.gpm"}
"""Calls in modules that not every agent needs."""


def _pynvml() -> ModuleType:
    """Import pynvml without ctypes.util, of which it imports a function that it does not call.

    ctypes.util imports subprocess, shutil and tempfile, which take 0.9 MiB.
    """
    if "ctypes.util" in sys.modules:
        return importlib.import_module("pynvml")

    def find_library(name: str) -> str | None:
        return importlib.import_module("ctypes.util").find_library(name)  # type: ignore[no-any-return]

    substitute = ModuleType("ctypes.util")
    substitute.find_library = find_library  # type: ignore[attr-defined]
    sys.modules["ctypes.util"] = substitute
    try:
        return importlib.import_module("pynvml")
    finally:
        del sys.modules["ctypes.util"]


class WorkerServer:
    """Serves the calls of one agent."""

    def __init__(self, connection: socket.socket, generation: int, path: str) -> None:
        handles = Handles(generation)
        self._module: Any = _pynvml()
        self._codec = Codec(self._module, handles.token, handles.address)
        self._connection = connection
        self._path = path
        self._loaded = not path
        self._lanes: dict[str, SimpleQueue[dict[str, Any]]] = {}
        self._sending = threading.Lock()
        self._loading = threading.Lock()
        self._next_trim_s = time.monotonic() + TRIM_INTERVAL_S

    def serve(self) -> None:
        """Report readiness, and serve until the agent closes its end."""
        self._connection.sendall(b'{"id":0}\n')
        with self._connection.makefile("rb") as lines:
            for line in lines:
                call = json.loads(line)
                try:
                    lane = self._lane(call["lane"])
                except NoThreadError as error:
                    self._send({"id": call["id"], "busy": str(error)})
                else:
                    lane.put(call)

    def _lane(self, name: str) -> SimpleQueue[dict[str, Any]]:
        queue = self._lanes.get(name)
        if queue is None:
            queue = SimpleQueue()
            start_thread(name, self._work, queue)
            self._lanes[name] = queue
        return queue

    def _work(self, queue: SimpleQueue[dict[str, Any]]) -> None:
        while True:
            call = queue.get()
            self._send({"id": call["id"], **self.answer(call["name"], call["args"])})
            if time.monotonic() >= self._next_trim_s:
                # Libraries allocate and free much when devices come and go.
                self._next_trim_s = time.monotonic() + TRIM_INTERVAL_S
                trim()

    def _send(self, answer: dict[str, Any]) -> None:
        line = json.dumps(answer, separators=(",", ":")).encode() + b"\n"
        try:
            with self._sending:
                self._connection.sendall(line)
        except OSError:  # the agent has exited
            os._exit(0)

    def answer(self, name: str, encoded: list[Any]) -> dict[str, Any]:
        """Make a call, and return the response without its id."""
        arguments: list[Any] = []
        try:
            self._load()
            arguments = [self._codec.decode(argument) for argument in encoded]
            answer = {"value": self._codec.encode(self._function(name)(*arguments))}
        except self._module.NVMLError as error:
            answer = {"refused": [error.value, self._text(error)]}
        except StaleHandleError as error:
            answer = {"stale": str(error)}
        except OSError as error:
            answer = {"missing": str(error)}
        except Exception as error:  # noqa: BLE001 - returned to the caller
            answer = {"defect": f"{type(error).__name__}: {error}"}
        filled = [
            [number, self._codec.content(target)]
            for number, argument in enumerate(arguments)
            if (target := targets(argument)) is not None
        ]
        return {**answer, "filled": filled} if filled else answer

    def _function(self, name: str) -> Any:
        if (module := _LOADED_ON_USE.get(name)) is not None:
            return partial(getattr(importlib.import_module(module), name), self._module)
        own = CALLS.get(name)
        return getattr(self._module, name) if own is None else partial(own, self._module)

    def _load(self) -> None:
        with self._loading:
            if not self._loaded:
                # pynvml looks for a soname only; this is how it takes another library.
                self._module.nvmlLib = ctypes.CDLL(self._path)
                self._loaded = True

    def _text(self, error: Any) -> str:
        try:
            return str(error)
        except self._module.NVMLError:  # the text is the library's too
            return f"error {error.value}"


def serve_agent(server: Callable[[socket.socket], WorkerServer]) -> None:
    """Serve the agent at the other end of the socket whose descriptor is the first argument of the process."""
    # The agent receives the same signals and decides when this process ends, by closing the socket.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Each lane has a thread, whose arena would keep what it once used.
    limit_free_memory()
    try:
        server(socket.socket(fileno=int(sys.argv[1]))).serve()
    finally:
        # A call that hangs must not keep the process.
        os._exit(0)


if __name__ == "__main__":
    serve_agent(lambda connection: WorkerServer(connection, int(sys.argv[2]), sys.argv[3]))
