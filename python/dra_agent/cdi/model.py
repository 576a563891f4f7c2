"""A CDI spec as the loaders of container runtimes read it: its objects and their JSON names.

It defines types only; `validate` has the other rules of runtimes, and the version that a spec needs. Loaders reject
unknown fields, and so does this model. Source: the Container Device Interface specification, versions 0.3.0 to 1.1.0.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeVar

import msgspec

T = TypeVar("T")
# Characters that are valid in JSON, but invalid or line breaks in YAML (YAML 1.1, sections 5.1 and 5.4).
_NOT_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Uint32 = Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)]
NodeType = Literal["", "b", "c", "u", "p"]
HookName = Literal["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"]


class _Part(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, rename="camel"):
    pass


class DeviceNode(_Part, frozen=True):
    """A device node that appears in the container."""

    path: str
    """In the container."""
    host_path: str = ""
    """On the host, if different from `path` (CDI 0.5.0)."""
    type: NodeType = ""
    major: Int64 | None = None
    minor: Int64 | None = None
    file_mode: Uint32 | None = None
    permissions: str = ""
    """Permissions of the device cgroup: a subset of "rwm", "none", or "" for all."""
    uid: Uint32 | None = None
    gid: Uint32 | None = None


class NetDevice(_Part, frozen=True):
    """A network interface that the runtime moves into the container (1.1.0)."""

    host_interface_name: str
    name: str


class Hook(_Part, frozen=True):
    """A binary of the host that the runtime runs at one stage of a container's lifecycle."""

    hook_name: HookName
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: Int64 | None = None


class Mount(_Part, frozen=True):
    """A path of the host that appears in the container."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str = ""
    """File system type (0.4.0)."""


class IntelRdt(_Part, frozen=True):
    """Cache and memory bandwidth classes (0.7.0; schemata and monitoring 1.1.0)."""

    clos_id: str = msgspec.field(name="closID", default="")
    l3_cache_schema: str = ""
    mem_bw_schema: str = ""
    schemata: tuple[str, ...] = ()
    enable_monitoring: bool = False


class ContainerEdits(_Part, frozen=True):
    """The changes that a runtime makes to a container with a device."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    net_devices: tuple[NetDevice, ...] = ()
    hooks: tuple[Hook, ...] = ()
    mounts: tuple[Mount, ...] = ()
    intel_rdt: IntelRdt | None = None
    additional_gids: tuple[Uint32, ...] = ()

    def __bool__(self) -> bool:
        """Return whether the edits are not empty: a runtime rejects a file with empty edits."""
        return self != _EMPTY

    def merged(self, other: ContainerEdits) -> ContainerEdits:
        """Return these edits followed by the `other` ones, without duplicates."""
        return ContainerEdits(
            env=_union(self.env, other.env),
            device_nodes=_union(self.device_nodes, other.device_nodes),
            net_devices=_union(self.net_devices, other.net_devices),
            hooks=_union(self.hooks, other.hooks),
            mounts=_union(self.mounts, other.mounts),
            intel_rdt=other.intel_rdt or self.intel_rdt,
            additional_gids=_union(self.additional_gids, other.additional_gids),
        )


_EMPTY = ContainerEdits()


class Device(_Part, frozen=True):
    """One device of a spec; its qualified name is `vendor/class=name`."""

    name: str
    container_edits: ContainerEdits
    annotations: dict[str, str] = {}


class Spec(_Part, frozen=True):
    """One CDI file."""

    cdi_version: str
    kind: str
    devices: tuple[Device, ...]
    annotations: dict[str, str] = {}
    container_edits: ContainerEdits = _EMPTY
    """Applied once to each container that gets any device of the file."""


def encode(spec: Spec) -> bytes:
    """Encode a spec as JSON that the runtimes' YAML parsers read identically; deterministic."""
    data = msgspec.json.encode(spec) + b"\n"
    if data.isascii() and b"\x7f" not in data:
        return data
    return _NOT_IN_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", data.decode()).encode()


def _union(first: tuple[T, ...], second: tuple[T, ...]) -> tuple[T, ...]:
    if not first or not second:
        return first or second
    return first + tuple(item for item in second if item not in first)
