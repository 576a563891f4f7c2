"""NVIDIA's container toolkit: edits of a GPU from `nvidia-ctk cdi generate`, and the CDI spec that it maintains.

It only reads. A spec that was generated for another driver names libraries that no longer exist, or GPU nodes that have
been renumbered: a container would not start with it, or get another GPU.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Sequence
from pathlib import Path

from dra_agent.cdi.model import ContainerEdits, Spec
from dra_agent.cdi.registry import load_file, spec_names
from dra_agent.cdi.text import decode
from dra_agent.command import HostCommand
from dra_agent.driver_root import DriverRoot

KIND = "nvidia.com/gpu"
_LIBRARY = re.compile(r"lib(?:cuda|nvidia-ml)\.so\.(\d+(?:\.\d+)+)")
_Stamp = tuple[int, int, int]

log = logging.getLogger(__name__)

TIMEOUT_S = 10.0
"""A working tool needs one or two seconds; the kubelet's timeout of a whole prepare call is 45 s."""
_HINT = "run it by hand to see its error, or let nvidia-cdi-refresh keep /var/run/cdi/nvidia.yaml"
_Edits = tuple[ContainerEdits, ContainerEdits]
_Key = tuple[str, tuple[int, ...] | None]


class ToolkitCommand:
    """The tool at one path, with a cache of its results per GPU and driver version. Thread-safe."""

    def __init__(self, tool: Path, deadline: float = TIMEOUT_S, *, root: DriverRoot | None = None) -> None:
        self._tool = HostCommand(tool, deadline, hint=_HINT)
        self._root = root
        self._cache: dict[_Key, _Edits] = {}
        self._lock = threading.Lock()

    def edits(self, uuid: str, version: tuple[int, ...] | None) -> _Edits:
        """Return the edits of one GPU or MIG device, and the common ones. Raises RetryableError if the tool fails."""
        key = (uuid, version)
        cached = self._cache.get(key)
        if cached is not None and _files_exist(cached):
            return cached
        with self._lock:
            edits = self._generate(uuid)
            self._cache[key] = edits
        return edits

    def _generate(self, uuid: str) -> _Edits:
        arguments = ["cdi", "generate", "--format=json", "--device-name-strategy=uuid", *self._root_options()]
        done = self._tool.run([*arguments, f"--device-id={uuid}"])
        if done.status != 0 and "not defined" in done.errors:
            done = self._tool.run(arguments)  # a version without --device-id
        if done.status != 0:
            last = done.errors.strip().splitlines()[-1:] or ["no message"]
            raise self._tool.error(f"exit status {done.status}: {last[0]}")
        try:
            spec = decode(done.output, as_json=True)
        except ValueError as error:
            raise self._tool.error(f"its output cannot be used: {error}") from error
        found = _of_device(spec, uuid)
        if found is None:
            raise self._tool.error(f"it does not know {uuid}")
        return found

    def _root_options(self) -> list[str]:
        """Return the options for a driver root. Without --dev-root, the tool expects device nodes below it, too."""
        root = self._root
        if root is None or (not root.required and root.identity() is None):
            return []
        return [f"--driver-root={root.mount}", f"--dev-root={'/' if root.dev() is None else root.mount}"]


def _of_device(spec: Spec, uuid: str) -> _Edits | None:
    for device in spec.devices:
        if device.name == uuid:
            return device.container_edits, spec.container_edits
    return None


def _files_exist(cached: _Edits) -> bool:
    """Return whether all files of the host that cached edits mount still exist."""
    paths = (mount.host_path for edits in cached for mount in edits.mounts)
    return all(os.path.lexists(path) for path in paths)


class ToolkitSpecs:
    """Specs of NVIDIA's kind in a list of CDI directories; a file is parsed again only if it changes."""

    def __init__(self, directories: Sequence[Path], root: DriverRoot | None = None) -> None:
        self._directories = tuple(directories)
        self._root = root
        self._parsed: dict[Path, tuple[_Stamp, Spec | None]] = {}
        self._lock = threading.Lock()

    def find(self, uuid: str, version: tuple[int, ...] | None, gpu_nodes: Sequence[str]) -> str | None:
        """Return the qualified name of a GPU or MIG device in a valid spec; None if there is no such spec.

        `version` is that of the running driver; `gpu_nodes` are the container paths of the GPU's own nodes.
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
        reason = _stale(spec, uuid, version, gpu_nodes, self._root)
        if reason is not None:
            log.warning("NVIDIA's CDI spec is out of date", extra={"file": str(path), "uuid": uuid, "reason": reason})
            return None
        return f"{KIND}={uuid}"

    def _specs(self, directory: Path) -> list[tuple[Path, Spec]]:
        # Specs of claims, of any driver, are numerous, change often, and never define whole GPUs.
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
    """Return the nodes of a device in the spec; None if it has no such device."""
    for device in spec.devices:
        if device.name == uuid:
            return frozenset(node.path for node in device.container_edits.device_nodes)
    return None


def _stale(
    spec: Spec, uuid: str, version: tuple[int, ...] | None, gpu_nodes: Sequence[str], root: DriverRoot | None
) -> str | None:
    nodes = _device_nodes(spec, uuid) or frozenset()
    if absent := [node for node in gpu_nodes if node not in nodes]:
        return f"it has {', '.join(sorted(nodes)) or 'no node'}, the GPU is at {', '.join(absent)}"
    edits = [spec.container_edits, *(device.container_edits for device in spec.devices if device.name == uuid)]
    mounts = [mount.host_path for edit in edits for mount in edit.mounts]
    names = [_LIBRARY.fullmatch(Path(mount).name) for mount in mounts]
    versions = {tuple(int(part) for part in name[1].split(".")) for name in names if name is not None}
    if not versions:
        return "it mounts no driver library"
    if version is not None and version not in versions:
        listed = ", ".join(".".join(map(str, item)) for item in sorted(versions))
        return f"it is of driver {listed}, the running one is {'.'.join(map(str, version))}"
    seen = {mount: mount if root is None else root.as_seen(mount) for mount in mounts}
    missing = next((mount for mount in mounts if not Path(seen[mount]).exists()), None)
    return f"it mounts {missing}, which does not exist" if missing is not None else None
