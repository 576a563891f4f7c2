"""NVIDIA's own CDI spec, as its toolkit keeps it in a CDI directory: whether a GPU is in it and it fits the driver.

It reads only. A spec that was generated for another driver names libraries that are gone, or GPU nodes that have been
renumbered: a container with it would not start, or get a neighbour's GPU.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Sequence
from pathlib import Path

from dra_agent.cdi.model import Spec
from dra_agent.cdi.registry import load_file, spec_names

KIND = "nvidia.com/gpu"
_LIBRARY = re.compile(r"lib(?:cuda|nvidia-ml)\.so\.(\d+(?:\.\d+)+)")
_Stamp = tuple[int, int, int]

log = logging.getLogger(__name__)


class ToolkitSpecs:
    """Specs of NVIDIA's kind in a list of CDI directories; files are parsed again only when they change."""

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = tuple(directories)
        self._parsed: dict[Path, tuple[_Stamp, Spec | None]] = {}
        self._lock = threading.Lock()

    def find(self, uuid: str, version: tuple[int, ...] | None, gpu_nodes: Sequence[str]) -> str | None:
        """Give the qualified name of a GPU or MIG device whose published edits are good now, else None.

        `version` is the running driver's; `gpu_nodes` are the container paths of the GPU's own nodes.
        """
        found: tuple[Path, Spec] | None = None
        for directory in self._directories:
            holders = [(path, spec) for path, spec in self._specs(directory) if _device_nodes(spec, uuid) is not None]
            if len(holders) > 1:
                log.warning(
                    "several CDI specs define one GPU: runtimes drop it",
                    extra={"uuid": uuid, "files": [str(path) for path, _ in holders]},
                )
                return None
            found = holders[0] if holders else found
        if found is None:
            return None
        path, spec = found
        reason = _stale(spec, uuid, version, gpu_nodes)
        if reason is not None:
            log.warning("NVIDIA's CDI spec is out of date", extra={"file": str(path), "uuid": uuid, "reason": reason})
            return None
        return f"{KIND}={uuid}"

    def _specs(self, directory: Path) -> list[tuple[Path, Spec]]:
        # Specs of claims, ours and other drivers', are many, come and go, and never define a vendor's plain devices.
        candidates = [directory / name for name in spec_names(directory, without="-claim_")]
        parsed = [(path, self._parse(path)) for path in candidates]
        with self._lock:
            for path in [known for known in self._parsed if known.parent == directory and known not in candidates]:
                del self._parsed[path]
        return [(path, spec) for path, spec in parsed if spec is not None]

    def _parse(self, path: Path) -> Spec | None:
        try:
            status = path.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            with self._lock:
                known = self._parsed.get(path)
            if known is not None and known[0] == stamp:
                return known[1]
            spec = load_file(path).spec if KIND.encode() in path.read_bytes() else None
        except OSError:
            return None
        with self._lock:
            self._parsed[path] = (stamp, spec if spec is not None and spec.kind == KIND else None)
            return self._parsed[path][1]


def _device_nodes(spec: Spec, uuid: str) -> frozenset[str] | None:
    """Give the nodes that the spec gives with a device; None where it has no such device."""
    for device in spec.devices:
        if device.name == uuid:
            return frozenset(node.path for node in device.container_edits.device_nodes)
    return None


def _stale(spec: Spec, uuid: str, version: tuple[int, ...] | None, gpu_nodes: Sequence[str]) -> str | None:
    nodes = _device_nodes(spec, uuid) or frozenset()
    if lacking := [node for node in gpu_nodes if node not in nodes]:
        return f"it gives {', '.join(sorted(nodes)) or 'no node'}, the GPU is at {', '.join(lacking)}"
    edits = [spec.container_edits, *(device.container_edits for device in spec.devices if device.name == uuid)]
    mounts = [mount.host_path for edit in edits for mount in edit.mounts]
    names = [_LIBRARY.fullmatch(Path(mount).name) for mount in mounts]
    versions = {tuple(int(part) for part in name[1].split(".")) for name in names if name is not None}
    if not versions:
        return "it mounts no driver library"
    if version is not None and version not in versions:
        listed = ", ".join(".".join(map(str, item)) for item in sorted(versions))
        return f"it is of driver {listed}, the running one is {'.'.join(map(str, version))}"
    gone = next((mount for mount in mounts if not Path(mount).exists()), None)
    return f"{gone}, which it mounts, is gone" if gone is not None else None
