"""Validation of a decoded spec by the rules of the runtimes' loaders, and the lowest version that a spec needs.

A runtime rejects a version that it does not know, even if the spec uses no new feature, so the agent writes the lowest
one. The existence of nodes and files is not checked.
"""

from __future__ import annotations

import re

from dra_agent.cdi.model import ContainerEdits, Spec
from dra_agent.cdi.names import device_problem, qualifier_problem

_ANNOTATION_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_ANNOTATION_PREFIX = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
MAX_ANNOTATIONS_BYTES = 256 * 1024
"""Bytes of all keys and values of one object's annotations."""


def problems(spec: Spec, *, newest: str = "1.1.0") -> list[str]:
    """Return all reasons to reject the spec as "field: reason"; empty for a spec that every loader accepts.

    `newest` is the newest version that the loader knows.
    """
    # Lists, and not generators: each new claim has its spec validated while the kubelet waits.
    found = _version(spec, newest)
    vendor, slash, device_class = spec.kind.partition("/")
    if not slash:
        found.append(f"kind: {spec.kind!r} is not vendor/class")
    else:
        found += [f"kind: {problem}" for part in (vendor, device_class) if (problem := qualifier_problem(part))]
    found += _edits("containerEdits", spec.container_edits)
    if not spec.devices:
        found.append("devices: there must be at least one")
    seen: set[str] = set()
    for index, device in enumerate(spec.devices):
        where = f"devices[{index}]"
        if problem := device_problem(device.name):
            found.append(f"{where}.name: {problem}")
        if device.name in seen:
            found.append(f"{where}.name: {device.name!r} appears twice")
        seen.add(device.name)
        if not device.container_edits:
            found.append(f"{where}.containerEdits: must not be empty")
        found += _edits(f"{where}.containerEdits", device.container_edits)
    return found


def warnings(spec: Spec) -> list[str]:
    """Return violations of the specification that loaders ignore today, as "field: reason"."""
    found = _annotations("annotations", spec.annotations)
    for index, device in enumerate(spec.devices):
        if device.annotations:
            found += _annotations(f"devices[{index}].annotations", device.annotations)
    return found


def _version(spec: Spec, newest: str) -> list[str]:
    version = spec.cdi_version.removeprefix("v")
    if version not in KNOWN or KNOWN.index(version) > KNOWN.index(newest):
        return [f"cdiVersion: {spec.cdi_version!r} is not a released version"]
    needed = minimum_version(spec)
    if KNOWN.index(version) < KNOWN.index(needed):
        return [f"cdiVersion: {version} is too low, the fields of the spec need {needed}"]
    return []


def _edits(where: str, edits: ContainerEdits) -> list[str]:
    found = _env(f"{where}.env", edits.env)
    for index, node in enumerate(edits.device_nodes):
        if not node.path:
            found.append(f"{where}.deviceNodes[{index}].path: must not be empty")
        if node.permissions != "none" and node.permissions.strip("rwm"):
            found.append(
                f"{where}.deviceNodes[{index}].permissions: {node.permissions!r} is neither of 'rwm' nor 'none'"
            )
    for index, hook in enumerate(edits.hooks):
        if not hook.path:
            found.append(f"{where}.hooks[{index}].path: must not be empty")
        found += _env(f"{where}.hooks[{index}].env", hook.env)
    for index, mount in enumerate(edits.mounts):
        if not mount.host_path:
            found.append(f"{where}.mounts[{index}].hostPath: must not be empty")
        if not mount.container_path:
            found.append(f"{where}.mounts[{index}].containerPath: must not be empty")
    if edits.net_devices:
        found += _net_devices(where, edits)
    if edits.intel_rdt is not None:
        closid = edits.intel_rdt.clos_id
        # A directory below /sys/fs/resctrl; "/" is the root class.
        if closid != "/" and (closid in {".", ".."} or len(closid) >= 4096 or re.search(r"[/\n]", closid)):
            found.append(f"{where}.intelRdt.closID: {closid!r} cannot be a file name")
    return found


def _net_devices(where: str, edits: ContainerEdits) -> list[str]:
    found: list[str] = []
    hosts: set[str] = set()
    names: set[str] = set()
    for index, net in enumerate(edits.net_devices):
        field = f"{where}.netDevices[{index}]"
        for key, name, seen in (("hostInterfaceName", net.host_interface_name, hosts), ("name", net.name, names)):
            if not name:
                found.append(f"{field}.{key}: must not be empty")
            elif name in seen:
                found.append(f"{field}.{key}: {name!r} appears twice")
            seen.add(name)
    return found


def _env(where: str, env: tuple[str, ...]) -> list[str]:
    return [
        f"{where}[{index}]: {variable!r} is not NAME=VALUE"
        for index, variable in enumerate(env)
        if variable.find("=") <= 0
    ]


def _annotations(where: str, annotations: dict[str, str]) -> list[str]:
    found: list[str] = []
    for key in annotations:
        prefix, slash, name = key.rpartition("/")
        valid_prefix = not slash or (len(prefix) <= 253 and _ANNOTATION_PREFIX.fullmatch(prefix.lower()))
        if not valid_prefix or not _ANNOTATION_NAME.fullmatch(name):
            found.append(f"{where}: {key!r} is not an annotation key ([prefix/]name, the name at most 63 characters)")
    size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
    if size > MAX_ANNOTATIONS_BYTES:
        found.append(f"{where}: {size} bytes, at most {MAX_ANNOTATIONS_BYTES} are allowed")
    return found


KNOWN = ("0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
"""All released versions, oldest first; loaders reject any other."""


def minimum_version(spec: Spec) -> str:
    """Return the lowest version that has all features of the spec; its cdiVersion is ignored."""
    needed = [_version_of_edits(spec.container_edits)]
    if spec.annotations or "." in spec.kind.partition("/")[2]:
        needed.append("0.6.0")
    for device in spec.devices:
        needed.append(_version_of_edits(device.container_edits))
        if device.annotations:
            needed.append("0.6.0")
        elif "0" <= device.name[:1] <= "9":
            needed.append("0.5.0")
    return max(needed, key=KNOWN.index)


def _version_of_edits(edits: ContainerEdits) -> str:
    rdt = edits.intel_rdt
    if edits.net_devices or (rdt is not None and (rdt.schemata or rdt.enable_monitoring)):
        return "1.1.0"
    if rdt is not None or edits.additional_gids:
        return "0.7.0"
    for node in edits.device_nodes:
        if node.host_path:
            return "0.5.0"
    for mount in edits.mounts:
        if mount.type:
            return "0.4.0"
    return "0.3.0"
