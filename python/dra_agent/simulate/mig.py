"""MIG state of simulated GPUs: the file next to the state of the simulated NVML, and the reset of a GPU.

Instances are created and destroyed through NVML only; see the Rust crate `nvml-fake`.
"""

from __future__ import annotations

import fcntl
import shutil
from pathlib import Path

import msgspec

from dra_agent.errors import PermanentError
from dra_agent.simulate.tree import replace_file

STATE = "nvml.mig.json"
_LOCK = "nvml.mig.lock"


class ComputeInstance(msgspec.Struct, frozen=True):
    """A compute instance; start and size in compute slices of its GPU instance."""

    id: int
    profile: int
    start: int
    size: int
    uuid: str


class GpuInstance(msgspec.Struct, frozen=True):
    """A GPU instance; start and size in memory slices."""

    id: int
    profile: int
    start: int
    size: int
    compute_instances: tuple[ComputeInstance, ...] = ()


class GpuPartitioning(msgspec.Struct, frozen=True):
    """One GPU: its current and pending MIG mode, and its instances.

    `made` counts every compute instance that has ever been made.
    """

    mode: bool = False
    pending: bool = False
    made: int = 0
    gpu_instances: tuple[GpuInstance, ...] = ()


def read(root: Path) -> dict[str, GpuPartitioning]:
    """Return the MIG instances of the GPUs of the host at `root`, by UUID; a missing GPU has MIG mode off.

    Raises PermanentError if the state file is invalid.
    """
    path = root / "lib" / STATE
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, GpuPartitioning])  # noqa: TID251 - a file of the simulated host
    except FileNotFoundError:
        return {}
    except msgspec.MsgspecError as error:
        raise PermanentError(f"not a valid list of simulated MIG instances: {error}", where=str(path)) from None


def reset(root: Path, uuid: str, minor: int) -> None:
    """Apply a reset to a GPU: instances are removed, and a pending mode takes effect."""
    with (root / "lib" / _LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        divided = read(root)
        if uuid not in divided:
            return
        old = divided[uuid]
        divided[uuid] = GpuPartitioning(old.pending, old.pending, old.made)
        replace_file(root / "lib" / STATE, msgspec.json.format(msgspec.json.encode(divided, order="sorted"), indent=2))
        for instance in old.gpu_instances:
            for number in _nodes(minor, instance):
                (root / f"dev/nvidia-caps/nvidia-cap{number}").unlink(missing_ok=True)
        shutil.rmtree(root / f"proc/driver/nvidia/capabilities/gpu{minor}/mig", ignore_errors=True)


def _nodes(minor: int, instance: GpuInstance) -> list[int]:
    """The minors of an instance's device nodes, as the library assigns them."""
    first = 3 + (minor * 15 + instance.id) * 9
    return [first, *(first + 1 + compute.id for compute in instance.compute_instances)]
