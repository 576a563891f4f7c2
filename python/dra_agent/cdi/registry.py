"""CDI directories as a runtime reads them: every file, or the reason why it is rejected, and devices by name.

It also computes the edits that a runtime applies to a container. It never writes.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dra_agent.cdi.model import ContainerEdits, Device, DeviceNode, Mount, Spec
from dra_agent.cdi.text import Reading, readings
from dra_agent.cdi.validate import problems
from dra_agent.errors import PermanentError

DEFAULT_DIRECTORIES = (Path("/etc/cdi"), Path("/var/run/cdi"))
"""Default directories of runtimes, lowest priority first."""


def is_default(directory: Path) -> bool:
    """Return whether runtimes read a directory by default, also through links."""
    return any(directory.resolve() == default.resolve() for default in DEFAULT_DIRECTORIES)


@dataclass(frozen=True, slots=True)
class LoadedFile:
    """One file of a CDI directory."""

    path: Path
    priority: int
    spec: Spec | None
    """None if a runtime rejects the file."""
    refused: tuple[str, ...] = ()
    caveat: str = ""
    """Which runtimes reject a file that others read, and why; empty if all that know its version read it."""


@dataclass(frozen=True, slots=True)
class RegisteredDevice:
    """A device that a runtime can inject."""

    device: Device
    spec: Spec
    path: Path
    priority: int


@dataclass(frozen=True, slots=True)
class Conflict:
    """A device that several files of one directory define: runtimes ignore all definitions."""

    name: str
    paths: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Registry:
    """Content of a list of CDI directories."""

    files: tuple[LoadedFile, ...]
    devices: dict[str, RegisteredDevice]
    """By qualified name; without conflicts."""
    conflicts: tuple[Conflict, ...]


def load_registry(directories: Sequence[Path]) -> Registry:
    """Read directories, lowest priority first; later ones take precedence. A rejected file does not affect others."""
    files: list[LoadedFile] = []
    devices: dict[str, RegisteredDevice] = {}
    conflicts: dict[str, list[Path]] = {}
    for priority, directory in enumerate(directories):
        for path in spec_files(directory):
            loaded = load_file(path, priority)
            files.append(loaded)
            if loaded.spec is None:
                continue
            for device in loaded.spec.devices:
                name = f"{loaded.spec.kind}={device.name}"
                other = devices.get(name)
                if other is not None and other.priority == priority:
                    conflicts.setdefault(name, [other.path]).append(path)
                    continue
                devices[name] = RegisteredDevice(device, loaded.spec, path, priority)
    for name in conflicts:
        del devices[name]
    return Registry(tuple(files), devices, tuple(Conflict(name, tuple(paths)) for name, paths in conflicts.items()))


def spec_files(directory: Path) -> list[Path]:
    """Return the files of a directory that runtimes read: *.json and *.yaml, also hidden ones, no subdirectories."""
    return [directory / name for name in spec_names(directory)]


def spec_names(directory: Path, *, without: str | None = None) -> list[str]:
    """Return the sorted names of these files, except names that contain `without`."""
    try:
        # Names first: each prepare lists the specs of all claims, and needs none of them.
        names = os.listdir(directory)  # noqa: PTH208
    except OSError:
        return []
    if without is not None:
        names = [name for name in names if without not in name]
    found = [name for name in names if name.endswith((".json", ".yaml"))]
    return sorted(name for name in found if not _is_directory(f"{directory}/{name}"))


def _is_directory(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:  # it was removed since
        return False


def load_file(path: Path, priority: int = 0) -> LoadedFile:
    """Read one file as a runtime does; returns reasons if it is rejected."""
    try:
        found = readings(path.read_bytes(), as_json=path.suffix == ".json")
    except OSError as error:
        return LoadedFile(path, priority, None, (f"cannot be read: {error.strerror}",))
    except ValueError as error:
        return LoadedFile(path, priority, None, (str(error),))
    newer, older = (_refused(reading) for reading in found)
    if newer and older:
        return LoadedFile(path, priority, None, newer if found[0].spec is not None else older)
    spec = found[1].spec if newer else found[0].spec
    assert spec is not None
    caveat = ""
    if newer or (older and spec.cdi_version.removeprefix("v") != found[0].newest):
        refusing, reason = (found[0], newer[0]) if newer else (found[1], older[0])
        caveat = f"runtimes with {refusing.library} refuse it: {reason}"
    return LoadedFile(path, priority, spec, (), caveat)


def _refused(reading: Reading) -> tuple[str, ...]:
    """Return why a library rejects a file; empty if it does not."""
    return (reading.problem,) if reading.spec is None else tuple(problems(reading.spec, newest=reading.newest))


def applied_edits(registry: Registry, ids: Sequence[str]) -> ContainerEdits:
    """Merge the edits of devices in the runtime's order; later values take precedence.

    The common edits of a file apply once, before its first device. Raises PermanentError with all unknown ids, which
    make a runtime fail to start the container.
    """
    missing = [name for name in ids if name not in registry.devices]
    if missing:
        conflicting = {conflict.name: conflict for conflict in registry.conflicts}
        reasons = []
        for name in missing:
            conflict = conflicting.get(name)
            paths = " and ".join(map(str, conflict.paths)) if conflict else ""
            reasons.append(f"{name} (defined twice, in {paths})" if conflict else name)
        raise PermanentError(
            f"no CDI device {', '.join(reasons)}",
            where="the CDI directories",
            hint="see `dra-agent cdi validate` for files that runtimes refuse",
        )
    applied: list[ContainerEdits] = []
    seen: set[Path] = set()
    for name in ids:
        registered = registry.devices[name]
        if registered.path not in seen:
            seen.add(registered.path)
            applied.append(registered.spec.container_edits)
        applied.append(registered.device.container_edits)
    return _merge(applied)


def _merge(applied: Sequence[ContainerEdits]) -> ContainerEdits:
    env = {variable.partition("=")[0]: variable for edits in applied for variable in edits.env}
    nodes: dict[str, DeviceNode] = {}
    mounts: dict[str, Mount] = {}
    for edits in applied:
        for node in edits.device_nodes:
            nodes.pop(node.path, None)
            nodes[node.path] = node
        for mount in edits.mounts:
            mounts.pop(mount.container_path, None)
            mounts[mount.container_path] = mount
    rdts = [edits.intel_rdt for edits in applied if edits.intel_rdt is not None]
    return ContainerEdits(
        env=tuple(env.values()),
        device_nodes=tuple(nodes.values()),
        net_devices=tuple(net for edits in applied for net in edits.net_devices),
        hooks=tuple(hook for edits in applied for hook in edits.hooks),
        # Parents before children, so that no mount hides an earlier one.
        mounts=tuple(sorted(mounts.values(), key=lambda mount: posixpath.normpath(mount.container_path).count("/"))),
        intel_rdt=rdts[-1] if rdts else None,
        additional_gids=tuple({gid: None for edits in applied for gid in edits.additional_gids if gid}),
    )


def describe(edits: ContainerEdits) -> Iterator[str]:
    """Return the edits for users, one line each."""
    for variable in edits.env:
        yield f"set {variable}"
    for node in edits.device_nodes:
        number = f"{node.type} {node.major}:{node.minor}" if node.type else "as on the host"
        origin = f" from {node.host_path}" if node.host_path else ""
        yield f"add device {node.path} ({number}, {node.permissions or 'rwm'}){origin}"
    for net in edits.net_devices:
        yield f"move interface {net.host_interface_name} in as {net.name}"
    for mount in edits.mounts:
        yield f"mount {mount.host_path} on {mount.container_path} ({','.join(mount.options) or 'bind'})"
    for hook in edits.hooks:
        yield f"run {hook.hook_name} hook {' '.join(hook.args or (hook.path,))}"
    if edits.intel_rdt is not None:
        yield f"join resource control class {edits.intel_rdt.clos_id or '(a new one)'}"
    for gid in edits.additional_gids:
        yield f"add group {gid}"
