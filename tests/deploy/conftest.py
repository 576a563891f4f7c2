"""The chart as Helm renders it. `make test-all` builds helm and kubectl with Go; otherwise tests are skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.rendering import CHART, KUBE_VERSION, Objects, RefusedError, Render, RenderText

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "dra-agent-cluster"


def binary(name: str) -> Path:
    """Find a binary in the cluster's cache, newest first, or in PATH; skips the test without it."""
    built = sorted(CACHE.glob(f"*/{name}"), key=lambda path: path.stat().st_mtime)
    found = built[-1] if built else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not built; `make test-tools` builds it, and requires Go")
    return Path(found)


LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""That of libyaml, if PyYAML has it, takes a tenth of the time."""


@pytest.fixture(scope="session")
def helm() -> Path:
    return binary("helm")


@pytest.fixture(scope="session")
def kubectl() -> Path:
    return binary("kubectl")


@pytest.fixture(scope="session")
def render_text(helm: Path) -> RenderText:
    """Render the chart with values, each set once; fails with Helm's message."""

    @cache
    def text(values: str, release: str, namespace: str, api_versions: tuple[str, ...], kube_version: str) -> str:
        command: list[str | Path] = [helm, "template", release, CHART, "--namespace", namespace, "--values", "-"]
        command += [f"--kube-version={kube_version}", *(f"--api-versions={version}" for version in api_versions)]
        # A program of Go that ends before it needs its memory again.
        without_collector = {**os.environ, "GOGC": "off"}
        result = subprocess.run(
            command, input=values, capture_output=True, text=True, check=False, env=without_collector
        )
        if result.returncode != 0:
            raise RefusedError(result.stderr)
        return result.stdout

    def rendered(
        values: dict[str, Any] | None = None,
        *,
        release: str = "dra-agent",
        namespace: str = "dra-agent",
        api_versions: tuple[str, ...] = (),
        kube_version: str = KUBE_VERSION,
    ) -> str:
        return text(yaml.safe_dump(values or {}), release, namespace, api_versions, kube_version)

    return rendered


@pytest.fixture(scope="session")
def render(render_text: RenderText) -> Render:
    """Render the chart with values, as objects."""

    def rendered(
        values: dict[str, Any] | None = None,
        *,
        release: str = "dra-agent",
        namespace: str = "dra-agent",
        api_versions: tuple[str, ...] = (),
        kube_version: str = KUBE_VERSION,
    ) -> Objects:
        text = render_text(
            values, release=release, namespace=namespace, api_versions=api_versions, kube_version=kube_version
        )
        return [item for item in yaml.load_all(text, LOADER) if item]

    return rendered
