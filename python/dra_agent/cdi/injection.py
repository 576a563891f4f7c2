"""The edits that a runtime applies to a container that gets certain CDI devices, in the runtime's order.

It only says them: no container is touched. Used to show what a claim gives where no runtime is installed.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from pathlib import Path

from dra_agent.cdi.model import ContainerEdits, DeviceNode, Mount
from dra_agent.cdi.registry import Registry
from dra_agent.errors import PermanentError


def applied_edits(registry: Registry, ids: Sequence[str]) -> ContainerEdits:
    """Merge the edits of devices: those of a file once, before those of its first device; later pieces win.

    PermanentError names each id that no file of the registry defines, as the runtime would when it refuses to start.
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
    return _together(applied)


def _together(applied: Sequence[ContainerEdits]) -> ContainerEdits:
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
        # Shallow targets first, so that no mount hides an earlier one.
        mounts=tuple(sorted(mounts.values(), key=lambda mount: posixpath.normpath(mount.container_path).count("/"))),
        intel_rdt=rdts[-1] if rdts else None,
        additional_gids=tuple({gid: None for edits in applied for gid in edits.additional_gids if gid}),
    )


def describe(edits: ContainerEdits) -> Iterator[str]:
    """Say edits in a line each, for people."""
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
        yield f"join resource control class {edits.intel_rdt.clos_id or '(of its own)'}"
    for gid in edits.additional_gids:
        yield f"add group {gid}"
