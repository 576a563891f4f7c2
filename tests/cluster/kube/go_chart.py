"""A controller that is installed by a chart of its Go module, and runs as a process on the host."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import yaml

from . import build
from .api import SERVICE_ACCOUNTS, Object
from .cluster import Cluster

TOKEN_LIFETIME_S = 6 * 3600


def chart_of(module: build.Module, path: str) -> Path:
    """Return a writable copy of the chart at `path` of the module; it is kept with the binaries of this version."""
    where = build.directory(module)
    chart = where / "chart"
    if not chart.exists():
        where.mkdir(parents=True, exist_ok=True)
        unfinished = where / f".chart-{os.getpid()}"
        source = build.unpacked_source(module) if module.unpacked else build.module_directory(module, module.versioned)
        shutil.copytree(source / path, unfinished)
        unfinished.rename(chart)
    return chart


def render(cluster: Cluster, release: str, chart: Path, namespace: str, values: Object) -> list[Object]:
    """Return the objects of a chart."""
    rendered = cluster.helm_template(release, chart, namespace=namespace, values=values)
    return [found for found in yaml.safe_load_all(rendered) if found]


def apply(cluster: Cluster, objects: list[Object]) -> None:
    """Create or update objects. Some schemas are too large for the annotation of a client-side apply."""
    cluster.kubectl("apply", "--server-side", "-f", "-", input=yaml.safe_dump_all(objects))


def write_kubeconfig(cluster: Cluster, namespace: str, account: str, file: Path) -> Path:
    """Write a kubeconfig with a token of a service account."""
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": TOKEN_LIFETIME_S},
    }
    token = str(cluster.api.call("POST", SERVICE_ACCOUNTS.path(namespace, account, "token"), body)["status"]["token"])
    return cluster.control_plane.kubeconfig(account, file, token=token)
