"""Validation of a decoded spec by the rules of the runtimes' loaders, and the lowest version that a spec needs.

A runtime rejects a version that it does not know, even if the spec uses no new feature, so the agent writes the lowest
one. The existence of nodes and files is not checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dra_agent.cdi.model import ContainerEdits, Spec
from dra_agent.cdi.names import device_problem, qualifier_problem

_ANNOTATION_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_ANNOTATION_PREFIX = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
MAX_ANNOTATIONS_BYTES = 256 * 1024
"""Bytes of all keys and values of one object's annotations."""


def problems(spec: Spec) -> list[str]:
    """Return all reasons to reject the spec as "field: reason"; empty for a spec that every loader accepts."""
    return list(_problems(spec))


def warnings(spec: Spec) -> list[str]:
    """Return violations of the specification that loaders ignore today, as "field: reason"."""
    found = list(_annotations("annotations", spec.annotations))
    for index, device in enumerate(spec.devices):
        found += _annotations(f"devices[{index}].annotations", device.annotations)
    return found


def _problems(spec: Spec) -> Iterator[str]:
    yield from _version(spec)
    vendor, slash, device_class = spec.kind.partition("/")
    if not slash:
        yield f"kind: {spec.kind!r} is not vendor/class"
    else:
        for part in (vendor, device_class):
            if problem := qualifier_problem(part):
                yield f"kind: {problem}"
    yield from _edits("containerEdits", spec.container_edits)
    if not spec.devices:
        yield "devices: there must be at least one"
    seen: set[str] = set()
    for index, device in enumerate(spec.devices):
        where = f"devices[{index}]"
        if problem := device_problem(device.name):
            yield f"{where}.name: {problem}"
        if device.name in seen:
            yield f"{where}.name: {device.name!r} appears twice"
        seen.add(device.name)
        if not device.container_edits:
            yield f"{where}.containerEdits: must not be empty"
        yield from _edits(f"{where}.containerEdits", device.container_edits)


def _version(spec: Spec) -> Iterator[str]:
    version = spec.cdi_version.removeprefix("v")
    if version not in KNOWN:
        yield f"cdiVersion: {spec.cdi_version!r} is not a released version"
        return
    needed = minimum_version(spec)
    if KNOWN.index(version) < KNOWN.index(needed):
        yield f"cdiVersion: {version} is too low, the fields of the spec need {needed}"


def _edits(where: str, edits: ContainerEdits) -> Iterator[str]:
    yield from _env(f"{where}.env", edits.env)
    for index, node in enumerate(edits.device_nodes):
        if not node.path:
            yield f"{where}.deviceNodes[{index}].path: must not be empty"
        if node.permissions != "none" and node.permissions.strip("rwm"):
            yield f"{where}.deviceNodes[{index}].permissions: {node.permissions!r} is neither of 'rwm' nor 'none'"
    for index, hook in enumerate(edits.hooks):
        if not hook.path:
            yield f"{where}.hooks[{index}].path: must not be empty"
        yield from _env(f"{where}.hooks[{index}].env", hook.env)
    for index, mount in enumerate(edits.mounts):
        if not mount.host_path:
            yield f"{where}.mounts[{index}].hostPath: must not be empty"
        if not mount.container_path:
            yield f"{where}.mounts[{index}].containerPath: must not be empty"
    yield from _net_devices(where, edits)
    if edits.intel_rdt is not None:
        closid = edits.intel_rdt.clos_id
        # A directory below /sys/fs/resctrl; "/" is the root class.
        if closid != "/" and (closid in {".", ".."} or len(closid) >= 4096 or re.search(r"[/\n]", closid)):
            yield f"{where}.intelRdt.closID: {closid!r} cannot be a file name"


def _net_devices(where: str, edits: ContainerEdits) -> Iterator[str]:
    hosts: set[str] = set()
    names: set[str] = set()
    for index, net in enumerate(edits.net_devices):
        field = f"{where}.netDevices[{index}]"
        for key, name, seen in (("hostInterfaceName", net.host_interface_name, hosts), ("name", net.name, names)):
            if not name:
                yield f"{field}.{key}: must not be empty"
            elif name in seen:
                yield f"{field}.{key}: {name!r} appears twice"
            seen.add(name)


def _env(where: str, env: tuple[str, ...]) -> Iterator[str]:
    for index, variable in enumerate(env):
        if variable.find("=") <= 0:
            yield f"{where}[{index}]: {variable!r} is not NAME=VALUE"


def _annotations(where: str, annotations: dict[str, str]) -> Iterator[str]:
    for key in annotations:
        prefix, slash, name = key.rpartition("/")
        valid_prefix = not slash or (len(prefix) <= 253 and _ANNOTATION_PREFIX.fullmatch(prefix.lower()))
        if not valid_prefix or not _ANNOTATION_NAME.fullmatch(name):
            yield f"{where}: {key!r} is not an annotation key ([prefix/]name, the name at most 63 characters)"
    size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
    if size > MAX_ANNOTATIONS_BYTES:
        yield f"{where}: {size} bytes, at most {MAX_ANNOTATIONS_BYTES} are allowed"


KNOWN = ("0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
"""All released versions, oldest first; loaders reject any other."""


def minimum_version(spec: Spec) -> str:
    """Return the lowest version that has all features of the spec; its cdiVersion is ignored."""
    edits = tuple(_all_edits(spec))
    rdts = tuple(edit.intel_rdt for edit in edits if edit.intel_rdt is not None)
    if any(edit.net_devices for edit in edits) or any(rdt.schemata or rdt.enable_monitoring for rdt in rdts):
        return "1.1.0"
    if rdts or any(edit.additional_gids for edit in edits):
        return "0.7.0"
    dotted_class = "." in spec.kind.partition("/")[2]
    if spec.annotations or dotted_class or any(device.annotations for device in spec.devices):
        return "0.6.0"
    starts_with_digit = any("0" <= device.name[:1] <= "9" for device in spec.devices)
    if starts_with_digit or any(node.host_path for edit in edits for node in edit.device_nodes):
        return "0.5.0"
    if any(mount.type for edit in edits for mount in edit.mounts):
        return "0.4.0"
    return "0.3.0"


def _all_edits(spec: Spec) -> Iterator[ContainerEdits]:
    yield spec.container_edits
    for device in spec.devices:
        yield device.container_edits
