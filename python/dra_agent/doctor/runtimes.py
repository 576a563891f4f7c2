"""Checks that the installed container runtimes inject CDI devices."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dra_agent.doctor.context import CheckContext
from dra_agent.doctor.finding import Finding, Severity, ok, problem, warning
from dra_agent.doctor.program_version import Version, read_version, version_text


@dataclass(frozen=True, slots=True)
class Runtime:
    """A program that starts containers, and since when it knows CDI."""

    name: str
    program: str
    cdi_since: Version | None
    """None for a runtime below another one, which injects the devices."""


RUNTIMES = (
    Runtime("Podman", "podman", (4, 1, 0)),
    Runtime("containerd", "containerd", (1, 7, 0)),
    Runtime("CRI-O", "crio", (1, 23, 0)),
    Runtime("Docker", "dockerd", (25, 0, 0)),
    Runtime("runc", "runc", None),
    Runtime("crun", "crun", None),
)
_CONTAINERD_DEFAULT: Version = (2, 0, 0)
"""First version in which CDI is enabled by default. Older ones need `enable_cdi` in their configuration."""
_DOCKER_DEFAULT: Version = (28, 3, 0)
"""Likewise; before, `features.cdi` in its configuration."""


def check_runtimes(context: CheckContext) -> Iterator[Finding]:
    """Check the version of each installed runtime."""
    found = [finding for runtime in RUNTIMES for finding in _runtime(context, runtime)]
    yield from found
    starters = [runtime for runtime in RUNTIMES if runtime.cdi_since and context.commands.find(runtime.program)]
    if not starters:
        yield warning(
            "no container runtime that knows CDI is installed",
            "podman, containerd, CRI-O, Docker",
            "install one of them: claims are for containers",
        )
        return
    if not any(finding.severity is Severity.OK for finding in found if finding.where in {r.name for r in starters}):
        message = "none of the installed runtimes injects CDI devices"
        yield problem(message, "container runtimes", "fix one of the above")
    below = [runtime for runtime in RUNTIMES if runtime.cdi_since is None]
    if not any(context.commands.find(runtime.program) for runtime in below):
        yield warning("neither runc nor crun is installed", "container runtimes", "install one: they start containers")


def _runtime(context: CheckContext, runtime: Runtime) -> Iterator[Finding]:
    program = context.commands.find(runtime.program)
    if program is None:
        return
    version = read_version(context.commands, program)
    if isinstance(version, Finding):
        yield version
        return
    text = version_text(version)
    if runtime.cdi_since is None:
        yield ok(text, runtime.name)
    elif version < runtime.cdi_since:
        since = ".".join(map(str, runtime.cdi_since[:2]))
        yield warning(f"{text} does not support CDI", runtime.name, f"install {since} or newer")
    else:
        yield _configured(context, runtime, version, text)


def _configured(context: CheckContext, runtime: Runtime, version: Version, text: str) -> Finding:
    if runtime.program == "containerd" and version < _CONTAINERD_DEFAULT:
        path = context.containerd_config
        if not _is_enabled(_toml(path), "enable_cdi"):
            hint = f'set enable_cdi = true under plugins."io.containerd.grpc.v1.cri" in {path}, and restart containerd'
            return warning(f"{text} does not inject CDI devices into pods", runtime.name, hint)
    if runtime.program == "dockerd" and version < _DOCKER_DEFAULT:
        path = context.docker_config
        if not _is_enabled(_json(path).get("features", {}), "cdi"):
            hint = f'set "features": {{"cdi": true}} in {path}, and restart docker'
            return warning(f"{text} does not inject CDI devices", runtime.name, hint)
    return ok(f"{text} injects CDI devices", runtime.name)


def _is_enabled(values: Any, key: str) -> bool:
    """Whether a key is true anywhere in a tree: containerd's tables are named differently from version to version."""
    if not isinstance(values, dict):
        return False
    return values.get(key) is True or any(_is_enabled(value, key) for value in values.values())


def _toml(path: Any) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except (OSError, RecursionError, ValueError):
        return {}


def _json(path: Any) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text())
    except (OSError, RecursionError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}
