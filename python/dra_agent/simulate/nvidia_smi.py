"""The simulated nvidia-smi: commands without an NVML call, the compute mode, and reports.

Output and exit status follow nvidia-smi(1). The values of `compute-policy` are stored next to the state of the
NVML library.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from dra_agent import child
from dra_agent.simulate import nvml
from dra_agent.simulate.tree import replace_file

TOOL = Path("bin/nvidia-smi")
"""Below the root of a host."""
TIME_SLICES = Path("lib/time-slices.json")
"""Numbers by UUID, of GPUs that are not at the default."""

_INVALID, _NOT_FOUND, _NO_DRIVER, _NO_LIBRARY, _OTHER = 2, 6, 9, 12, 255
_MODES = {"DEFAULT": 0, "PROHIBITED": 2, "EXCLUSIVE_PROCESS": 3}
_SHOWN = {0: "Default", 1: "Exclusive_Thread", 2: "Prohibited", 3: "Exclusive_Process"}
_MAX_TIME_SLICE = 3
_LOOKED_UP = ("nvmlDeviceGetHandleByUUID", "nvmlDeviceGetHandleByUUID_v2")


class _ExitError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def install(root: Path) -> Path:
    """Install the tool on a host; returns its path."""
    path = root / TOOL
    script = child.script("dra_agent.simulate.nvidia_smi_tool", str(root.absolute()))
    if not path.exists() or path.read_text() != script:
        path.parent.mkdir(exist_ok=True)
        replace_file(path, script.encode())
        path.chmod(0o755)
    return path


def time_slices(root: Path) -> dict[str, int]:
    """Return the time slice of each GPU by UUID, without default values."""
    try:
        return msgspec.json.decode((root / TIME_SLICES).read_bytes(), type=dict[str, int])  # noqa: TID251 - a file of the simulated host
    except FileNotFoundError:
        return {}


def main() -> int:
    """Run as the tool: the host's root, then nvidia-smi's own arguments."""
    root, *arguments = sys.argv[1:]
    try:
        print(_run(Path(root), arguments))
    except _ExitError as end:
        print(end, file=sys.stderr)
        return end.status
    return 0


def _run(root: Path, arguments: Sequence[str]) -> str:
    match arguments:
        case ["compute-policy", "-i", uuid, "--set-timeslice", number]:
            if number not in [str(known) for known in range(_MAX_TIME_SLICE + 1)]:
                raise _ExitError(_INVALID, f"Invalid timeslice {number}")
            with nvml.locked(root / "lib"):
                _gpu(root, uuid)
                kept = {**time_slices(root), uuid: int(number)}
                kept = {gpu: length for gpu, length in kept.items() if length}
                replace_file(root / TIME_SLICES, msgspec.json.encode(kept))
            return f"Successfully set timeslice for {uuid}"
        case ["-i", uuid, "--query-gpu=compute_mode", "--format=csv,noheader"]:
            return _SHOWN[_gpu(root, uuid).conditions.get(uuid, nvml.Condition()).compute_mode]
        case ["-i", uuid, "-c", mode] if mode in _MODES:
            with nvml.locked(root / "lib"):
                state = _gpu(root, uuid)
                condition = state.conditions.get(uuid, nvml.Condition())
                condition = msgspec.structs.replace(condition, compute_mode=_MODES[mode])
                conditions = {**state.conditions, uuid: condition}
                nvml.write(root / "lib", msgspec.structs.replace(state, conditions=conditions))
            return f"Set compute mode to {mode} for GPU {uuid}.\nAll done."
    if (found := _report(root, arguments)) is not None:
        return found
    raise _ExitError(_INVALID, f"Invalid combination of input arguments: {shlex.join(arguments)}")


def _report(root: Path, arguments: Sequence[str]) -> str | None:
    """Return a report of all GPUs; the library itself delays and fails the calls for it."""
    import pynvml

    from dra_agent.simulate.nvidia_smi_report import report

    try:
        return report(root, arguments)
    except pynvml.NVMLError as error:
        raise _ExitError(min(error.value, _OTHER), f"Failed to read the GPUs: {error}") from None
    except OSError as error:
        raise _ExitError(_NO_LIBRARY, f"NVIDIA-SMI couldn't load the NVML library: {error}") from None


def _gpu(root: Path, uuid: str) -> nvml.NvmlState:
    """Find a GPU through NVML, as the tool does, with all injected faults."""
    state = nvml.read(root / "lib")
    if state.driver is None:
        raise _ExitError(_NO_DRIVER, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
    for fault in state.faults:
        if fault.function not in (None, *_LOOKED_UP) or fault.device not in (None, uuid):
            continue
        while fault.hang and fault in nvml.read(root / "lib").faults:
            time.sleep(0.05)
        time.sleep(fault.delay_ms / 1000)
        if fault.code is not None:
            raise _ExitError(
                min(fault.code, _OTHER),
                f"Unable to determine the device handle for GPU {uuid}: error {fault.code}",
            )
    if not any(gpu.uuid == uuid and gpu.present for gpu in state.devices):
        raise _ExitError(_NOT_FOUND, "No devices were found")
    return state
