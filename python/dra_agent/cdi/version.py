"""The lowest version of the CDI specification that a spec needs.

A runtime refuses a version that it does not know even where nothing new is used, so the agent writes the lowest one.
"""

from __future__ import annotations

from collections.abc import Iterator

from dra_agent.cdi.model import ContainerEdits, Spec

KNOWN = ("0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
"""Every released version, oldest first; loaders refuse any other."""


def minimum_version(spec: Spec) -> str:
    """Give the lowest version whose features cover the spec; its own cdiVersion plays no part."""
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
