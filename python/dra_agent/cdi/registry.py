"""CDI directories as a runtime sees them: every file read or refused with its reason, devices by qualified name.

It reads only; which edits a container gets of the devices is told by `injection`.
"""

from __future__ import annotations

import json as json_module
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dra_agent.cdi.model import Device, Spec
from dra_agent.cdi.validate import problems

if TYPE_CHECKING:
    import yaml

DEFAULT_DIRECTORIES = (Path("/etc/cdi"), Path("/var/run/cdi"))
"""Where runtimes look unless told otherwise, lowest priority first."""


def is_default(directory: Path) -> bool:
    """Tell whether runtimes look into a directory without being told; links to one count."""
    return any(directory.resolve() == default.resolve() for default in DEFAULT_DIRECTORIES)


@dataclass(frozen=True, slots=True)
class LoadedFile:
    """One file of a CDI directory."""

    path: Path
    priority: int
    spec: Spec | None
    """None where a runtime refuses the file."""
    refused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RegisteredDevice:
    """A device that a runtime can inject."""

    device: Device
    spec: Spec
    path: Path
    priority: int


@dataclass(frozen=True, slots=True)
class Conflict:
    """One device in several files of one directory: runtimes drop it everywhere."""

    name: str
    paths: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Registry:
    """What is in a list of CDI directories."""

    files: tuple[LoadedFile, ...]
    devices: dict[str, RegisteredDevice]
    """By qualified name; without those in conflict."""
    conflicts: tuple[Conflict, ...]


def load_registry(directories: Sequence[Path]) -> Registry:
    """Read directories, lowest priority first; a bad file is refused alone. Later directories win over earlier ones."""
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
    """List the files of a directory that runtimes read: *.json and *.yaml, not below it, dot files too."""
    return [directory / name for name in spec_names(directory)]


def spec_names(directory: Path, *, without: str | None = None) -> list[str]:
    """List the names of those files, sorted; without those that contain `without`."""
    try:
        with os.scandir(directory) as entries:
            return sorted(
                entry.name
                for entry in entries
                if (without is None or without not in entry.name)
                and entry.name.endswith((".json", ".yaml"))
                and not entry.is_dir(follow_symlinks=False)
            )
    except OSError:
        return []


def load_file(path: Path, priority: int = 0) -> LoadedFile:
    """Read one file as a runtime does; the reasons say why it is refused."""
    try:
        spec = decode(path.read_bytes(), json=path.suffix == ".json")
    except OSError as error:
        return LoadedFile(path, priority, None, (f"cannot be read: {error.strerror}",))
    except ValueError as error:
        return LoadedFile(path, priority, None, (str(error),))
    refused = tuple(problems(spec))
    return LoadedFile(path, priority, None if refused else spec, refused)


def decode(data: bytes, *, json: bool = False) -> Spec:
    """Decode a spec of JSON or YAML text; ValueError says what is wrong and at which field or line.

    JSON is YAML to the loaders, so a .json file may hold YAML too: `json` says only what to try first.
    """
    if json:
        try:
            value = json_module.loads(data, object_pairs_hook=_no_repeats)
        except (ValueError, RecursionError):
            value = _from_yaml(data)  # which also says what is wrong with it
    else:
        value = _from_yaml(data)
    return msgspec.convert(_without_nulls(value), Spec)


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(value := dict(pairs)) != len(pairs):
        raise ValueError("a key appears twice")
    return value


def _from_yaml(data: bytes) -> Any:
    import yaml  # 1.5 MiB: needed only where somebody else's YAML spec is read

    try:
        return yaml.load(data, Loader=_loader())  # noqa: S506 - a safe loader that also refuses repeated keys
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark is not None else ""
        raise ValueError(f"{where}{getattr(error, 'problem', None) or error}") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _loader() -> type[yaml.SafeLoader]:
    import yaml

    class StrictLoader(yaml.SafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen: set[Any] = set()
            for key_node, _ in node.value:
                key = key_node.value
                if key in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"key {key!r} appears twice", key_node.start_mark
                    )
                seen.add(key)
            return super().construct_mapping(node, deep)

    return StrictLoader


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
