"""Access to the objects that the chart renders."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/helm/dra-agent"
BASE = ROOT / "deploy/kustomize/base"

KUBE_VERSION = "1.37.1"
"""The version of Kubernetes for which the chart is rendered; Helm's own default changes with its release."""

Objects = list[dict[str, Any]]


class Render(Protocol):
    """Return the objects that the chart renders with values, on a cluster of this version that has `api_versions`."""

    def __call__(
        self,
        values: dict[str, Any] | None = None,
        *,
        release: str = "dra-agent",
        namespace: str = "dra-agent",
        api_versions: tuple[str, ...] = (),
        kube_version: str = KUBE_VERSION,
    ) -> Objects: ...


class RenderText(Protocol):
    """Return what the chart renders, as text."""

    def __call__(
        self,
        values: dict[str, Any] | None = None,
        *,
        release: str = "dra-agent",
        namespace: str = "dra-agent",
        api_versions: tuple[str, ...] = (),
        kube_version: str = KUBE_VERSION,
    ) -> str: ...


class RefusedError(Exception):
    """Helm refused the values."""


def only_object(objects: Objects, kind: str) -> dict[str, Any]:
    """Return the only object of a kind."""
    (found,) = [found for found in objects if found["kind"] == kind]
    return found


def objects_by_name(objects: Objects, kind: str) -> dict[str, dict[str, Any]]:
    """Return the objects of a kind by name."""
    return {found["metadata"]["name"]: found for found in objects if found["kind"] == kind}


def container(objects: Objects) -> dict[str, Any]:
    (found,) = only_object(objects, "DaemonSet")["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found
