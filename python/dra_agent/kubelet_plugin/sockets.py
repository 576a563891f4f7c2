"""Where the plugin's sockets are: names that the kubelet's watcher takes, and that fit the kernel's address.

Names as the upstream helper gives them (k8s.io/dynamic-resource-allocation/kubeletplugin), so that operators find them.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dra_agent.errors import UsageError

LONGEST = 107
"""Bytes of a socket's path: sun_path has 108 and ends with a zero (unix(7))."""
_POD_UID = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,62}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class SocketPaths:
    """The two sockets of one instance of the plugin; both are the same where only one name fits."""

    service: Path
    """For prepare, unprepare and health."""
    registration: Path
    """For the kubelet's plugin watcher."""

    @property
    def distinct(self) -> tuple[Path, ...]:
        """Give each path once; the service's first, as it must listen before the kubelet is told of it."""
        return tuple(dict.fromkeys((self.service, self.registration)))


def socket_paths(kubelet_dir: Path, driver: str, pod_uid: str = "") -> SocketPaths:
    """Choose the first names that fit; with a pod's uid they are that instance's own, for rolling updates.

    Raises UsageError where no name fits below the kubelet's directory.
    """
    if pod_uid and not _POD_UID.fullmatch(pod_uid):
        raise UsageError(
            f"{pod_uid!r} is no pod's uid", where="--pod-uid", hint="give it metadata.uid of the agent's own pod"
        )
    root = kubelet_dir.absolute()
    registry = root / "plugins_registry"
    data = root / "plugins" / driver
    registration = _first_fitting(registry, _registrations(driver, pod_uid))
    if registration is None:
        shortest = registry / list(_registrations(driver, pod_uid))[-1]
        raise UsageError(
            f"no socket fits below it: paths of sockets have at most {LONGEST} bytes, and "
            f"{shortest} has {len(bytes(shortest))}",
            where=f"--kubelet-dir {kubelet_dir}",
            hint="give the kubelet a shorter --root-dir, or reach it through a shorter link",
        )
    # The kubelet also takes both services on one socket.
    return SocketPaths(_first_fitting(data, _services(pod_uid)) or registration, registration)


def sockets_of_instances(paths: SocketPaths, driver: str) -> Iterator[Path]:
    """Give the sockets that other instances of this driver have, or had, where their names tell the pod's uid."""
    data = paths.service.parent
    if data == paths.registration.parent:
        return  # beside other drivers' sockets: no name tells whose it is
    for service in data.glob("dra-*.sock"):
        if service != paths.service:
            yield service
            uid = service.name.removeprefix("dra-").removesuffix(".sock")
            # The registration's name may have room for a hash only where the service's has the whole uid.
            yield from (paths.registration.with_name(name) for name in _registrations(driver, uid))


def _registrations(driver: str, pod_uid: str) -> Iterator[str]:
    """Names of the registration socket, the best first; later ones are made only where they are needed."""
    if not pod_uid:
        yield f"{driver}-reg.sock"
        yield f"dra-{_digest(driver, 16)}-reg.sock"
        return
    yield f"{driver}-{pod_uid}-reg.sock"
    yield f"{driver}-{_digest(pod_uid, 8)}-reg.sock"
    yield "dra-" + _digest(f"{driver}\0{pod_uid}", 16) + "-reg.sock"


def _services(pod_uid: str) -> Iterator[str]:
    if not pod_uid:
        yield "dra.sock"
        return
    yield f"dra-{pod_uid}.sock"
    short = _digest(pod_uid, 8)
    yield f"dra-{short}.sock"
    yield f"{short}.sock"


def _first_fitting(directory: Path, names: Iterable[str]) -> Path | None:
    return next((directory / name for name in names if len(bytes(directory / name)) <= LONGEST), None)


def _digest(text: str, size: int) -> str:
    import hashlib  # half a megabyte, for names that are too long as they are

    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()[:size]).rstrip(b"=").decode()
