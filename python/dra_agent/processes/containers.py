"""The pod or container of a process, from its cgroup, which a container without privileges cannot choose.

The kubelet names the cgroup of a pod after its UID (pkg/kubelet/cm/pod_container_manager_linux.go), and a container can
create cgroups only below its own. So only the outermost names count, below the roots that kubelets use: cgroups of a
user (user.slice) may have any names. All other processes are unknown, with a reason.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["host", "pod", "container", "unknown"]

_UUID = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}"
_PREFIXES: tuple[tuple[str, ...], ...] = (
    ("kubepods",),
    ("kubelet", "kubepods"),
    ("kubepods.slice",),
    ("kubelet.slice", "kubelet-kubepods.slice"),
)
"""Of the cgroupfs driver and of the systemd driver; those below "kubelet" belong to nodes of kind
(--cgroup-root=/kubelet)."""
_QOS = re.compile(r"(?:burstable|besteffort)|(?:kubelet-)?kubepods-(?:burstable|besteffort)\.slice")
_POD = re.compile(rf"pod({_UUID})|(?:kubelet-)?kubepods(?:-burstable|-besteffort)?-pod({_UUID})\.slice")
_POD_ANYWHERE = re.compile(rf"pod{_UUID}")
_CONTAINER = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
"""IDs that podman, Docker, CRI-O and containerd give a container: libpod-ID.scope, docker/ID, crio-ID.scope."""


@dataclass(frozen=True, slots=True)
class Place:
    """The pod, container or host of a process."""

    kind: Kind
    """"container": a container without a known pod; "host": a process outside of containers."""
    pod_uid: str = ""
    cgroup: str = ""
    """The ID of the container; "" if the unified hierarchy does not show it."""
    reason: str = ""
    """Why it is unknown."""


def place_of(proc: Path, pid: int) -> Place | None:
    """Return the location of a process; None if the process does not exist."""
    try:
        text = (proc / str(pid) / "cgroup").read_bytes().decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError as error:
        return Place("unknown", reason=f"its cgroup cannot be read ({error.strerror})")
    return parse(text)


def pod_among(proc: Path, pid: int, pods: Collection[str]) -> str | None:
    """Return which of these pods, by UID, a process may be in; None if in none of them, or if it has exited.

    Unlike with `place_of`, a name anywhere in its cgroups counts: also outside of the agent's cgroup namespace, and
    where a user could have chosen it. Raises OSError.
    """
    try:
        text = (proc / str(pid) / "cgroup").read_bytes().decode(errors="replace").replace("_", "-")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return next((pod for pod in pods if pod and pod in text), None)


def parse(text: str) -> Place:
    """Read a /proc/PID/cgroup: lines ID:CONTROLLERS:PATH, one for each hierarchy, "0::" for version 2."""
    places: list[Place] = []
    unified = ""
    for line in text.split("\n"):  # names can have all other characters that splitlines() splits at
        number, _, rest = line.partition(":")
        path = rest.partition(":")[2]
        place = _parse_path(path)
        if path.strip("/"):
            places.append(place)
        if number == "0":
            unified = place.cgroup
    if not places:
        return Place("host")
    for place in places:
        if place.kind == "unknown":
            return place
    if len({(place.kind, place.pod_uid) for place in places}) > 1:
        return Place("unknown", reason="its cgroups of several hierarchies name different pods or containers")
    return Place(places[0].kind, places[0].pod_uid, unified)


def _parse_path(path: str) -> Place:
    parts = [part for part in path.removesuffix(" (deleted)").split("/") if part]
    if ".." in parts:
        return Place("unknown", reason="its cgroup lies outside of the agent's cgroup namespace")
    for prefix in _PREFIXES:
        if tuple(parts[: len(prefix)]) == prefix:
            return _below_kubepods(parts, len(prefix))
    if any(_POD_ANYWHERE.search(part) for part in parts):
        return Place("unknown", reason=f"its cgroup /{'/'.join(parts)[:200]} is not below a kubelet's root")
    for index, part in enumerate(parts):
        if not _CONTAINER.search(part):
            continue
        if parts[0] == "user.slice":
            return Place("unknown", reason="its cgroup is below user.slice, where users choose the names")
        return Place("container", cgroup="/".join(parts[: index + 1]))
    return Place("host", cgroup="/".join(parts))


def _below_kubepods(parts: list[str], index: int) -> Place:
    if index < len(parts) and _QOS.fullmatch(parts[index]):
        index += 1
    found = _POD.fullmatch(parts[index]) if index < len(parts) else None
    if found is None:
        return Place("unknown", reason=f"its cgroup /{'/'.join(parts)[:200]} names no pod")
    uid = (found[1] or found[2]).replace("_", "-")
    return Place("pod", uid, "/".join(parts[: index + 2]))
