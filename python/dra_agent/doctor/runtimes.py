"""Checks that the installed container runtimes inject CDI devices."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dra_agent import user_file
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
MAX_CONFIG_BYTES = 1 << 20
"""Bytes of a configuration file of a runtime."""
_CONTAINERD_DEFAULT: Version = (2, 0, 0)
"""First version in which CDI is enabled by default. Older ones need `enable_cdi` in their configuration."""
_DOCKER_DEFAULT: Version = (28, 3, 0)
"""Likewise; before, `features.cdi` in its configuration."""
_SYSTEMD_BY_NUMBER = 240
"""First version of systemd that takes the number of a device from the name of its link, which need not exist."""
_RUNC_BY_LINK: Version = (1, 1, 3)
_RUNC_BY_NUMBER: Version = (1, 1, 7)
"""Versions of runc from the first to before the second omit devices without a link (its changelog of 1.1.7)."""


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
    known = {finding.where: finding.severity for finding in found}
    # A runtime without a known version, for which there is a warning, may inject them.
    if all(known.get(runtime.name) is Severity.WARNING for runtime in starters):
        message = "none of the installed runtimes injects CDI devices"
        yield problem(message, "container runtimes", "fix one of them: each has a warning")
    below = [runtime for runtime in RUNTIMES if runtime.cdi_since is None]
    if not any(context.commands.find(runtime.program) for runtime in below):
        yield warning("neither runc nor crun is installed", "container runtimes", "install one: they start containers")


def without_device_links(context: CheckContext) -> str | None:
    """Return why no container here needs links in /dev/char for its devices; None if one may need them."""
    starters = [runtime.name for runtime in RUNTIMES if runtime.cdi_since and context.commands.find(runtime.program)]
    if starters and all(_manages_cgroups(context, name) for name in starters):
        return f"cgroups are managed by {', '.join(starters)}, not by systemd"
    systemd = _systemd_version(context)
    if systemd is None or systemd < _SYSTEMD_BY_NUMBER:
        return None
    names = [f"systemd {systemd}"]
    for program in ("runc", "crun"):
        path = context.commands.find(program)
        if path is None:
            continue
        version = read_version(context.commands, path)
        if isinstance(version, Finding) or (program == "runc" and _RUNC_BY_LINK <= version < _RUNC_BY_NUMBER):
            return None
        names.append(f"{program} {version_text(version)}")
    return None if len(names) == 1 else f"{' and '.join(names)} identify devices by number"


def _manages_cgroups(context: CheckContext, runtime: str) -> bool:
    """Whether a runtime is configured to manage cgroups without systemd; False if that is not known."""
    if runtime == "containerd":
        values = list(_values(_toml(context.containerd_config), "SystemdCgroup"))
        return bool(values) and not any(values)
    if runtime == "Docker":
        options = _json(context.docker_config).get("exec-opts")
        return isinstance(options, list) and "native.cgroupdriver=cgroupfs" in options
    return False


def _systemd_version(context: CheckContext) -> int | None:
    program = context.commands.find("systemctl")
    result = None if program is None else context.commands.run([program, "--version"])
    match = None if result is None or result.code != 0 else re.match(r"systemd (\d+)", result.output)
    return None if match is None else int(match[1])


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
    """Whether a key is true anywhere in a tree."""
    return any(value is True for value in _values(values, key))


def _values(tree: Any, key: str) -> Iterator[Any]:
    """Yield the values of a key anywhere in a tree: containerd's tables have other names in other versions."""
    if isinstance(tree, dict):
        if key in tree:
            yield tree[key]
        for value in tree.values():
            yield from _values(value, key)


def _toml(path: Any) -> dict[str, Any]:
    try:
        return tomllib.loads(user_file.read(path, MAX_CONFIG_BYTES).decode())
    except (OSError, RecursionError, ValueError):
        return {}


def _json(path: Any) -> dict[str, Any]:
    try:
        values = json.loads(user_file.read(path, MAX_CONFIG_BYTES))
    except (OSError, RecursionError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}
