"""The Kubernetes API server: reading, watching and writing objects, and every way in which that fails.

It knows no object's meaning; it only carries them.
"""

from __future__ import annotations

from dra_agent.kube_client.client import ApiClient, ObjectList, WatchCursor, WatchEvent, connect
from dra_agent.kube_client.errors import (
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidObjectError,
    NotFoundError,
    ThrottledError,
    UnauthorizedError,
    UnavailableError,
)
from dra_agent.kube_client.kinds import (
    DEVICE_CLASSES,
    EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Kind,
)

__all__ = [
    "ApiClient",
    "ConflictError",
    "DEVICE_CLASSES",
    "EVENTS",
    "ForbiddenError",
    "GoneError",
    "InvalidObjectError",
    "Kind",
    "NAMESPACES",
    "NODES",
    "NotFoundError",
    "ObjectList",
    "PODS",
    "RESOURCE_CLAIMS",
    "RESOURCE_CLAIM_TEMPLATES",
    "RESOURCE_SLICES",
    "ThrottledError",
    "UnauthorizedError",
    "UnavailableError",
    "WatchCursor",
    "WatchEvent",
    "connect",
]
