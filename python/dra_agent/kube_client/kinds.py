"""The kinds of objects that the agent reads and writes, and where the API has them."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import quote

_UNRESERVED = re.compile(r"[A-Za-z0-9._~-]+")


class Kind(NamedTuple):
    """A kind of object: its group ("" for the core group), version, name in paths and name in objects."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool

    @property
    def api_version(self) -> str:
        """`resource.k8s.io/v1`, or `v1` for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Return the path of an object; without a name, of all objects (without a namespace, in all namespaces)."""
        parts = ["/apis" if self.group else "/api", self.api_version]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", _quoted(namespace)]
        parts.append(self.plural)
        if name is not None:
            parts.append(_quoted(name))
            if subresource is not None:
                parts.append(subresource)
        return "/".join(parts)


def _quoted(name: str) -> str:
    # Names of the API need no quotes (RFC 3986, 2.3), and each read of a claim has two of them.
    return name if _UNRESERVED.fullmatch(name) else quote(name, safe="")


_DRA = ("resource.k8s.io", "v1")

RESOURCE_SLICES = Kind(*_DRA, "resourceslices", "ResourceSlice", namespaced=False)
RESOURCE_CLAIMS = Kind(*_DRA, "resourceclaims", "ResourceClaim", namespaced=True)
RESOURCE_CLAIM_TEMPLATES = Kind(*_DRA, "resourceclaimtemplates", "ResourceClaimTemplate", namespaced=True)
DEVICE_CLASSES = Kind(*_DRA, "deviceclasses", "DeviceClass", namespaced=False)
NODES = Kind("", "v1", "nodes", "Node", namespaced=False)
PODS = Kind("", "v1", "pods", "Pod", namespaced=True)
NAMESPACES = Kind("", "v1", "namespaces", "Namespace", namespaced=False)
EVENTS = Kind("events.k8s.io", "v1", "events", "Event", namespaced=True)
