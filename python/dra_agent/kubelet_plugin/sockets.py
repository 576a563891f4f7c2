"""Where the plugin's sockets are: names that the kubelet's watcher accepts, and that fit the kernel's address.

The names of the upstream helper (k8s.io/dynamic-resource-allocation/kubeletplugin), so that operators find them.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import os
import re
import socket
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from dra_agent.errors import RetryableError, UsageError

MAX_PATH_BYTES = 107
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
        """Return each path once; the service's first, as it must listen before it is announced to the kubelet."""
        return tuple(dict.fromkeys((self.service, self.registration)))


def socket_paths(kubelet_dir: Path, driver: str, pod_uid: str = "") -> SocketPaths:
    """Choose the first names that fit; with a pod's uid they are that instance's own, for rolling updates.

    Raises UsageError where no name fits below the kubelet's directory.
    """
    if pod_uid and not _POD_UID.fullmatch(pod_uid):
        raise UsageError(
            f"{pod_uid!r} is not the uid of a pod",
            where="--pod-uid",
            hint="give it metadata.uid of the agent's own pod",
        )
    root = kubelet_dir.absolute()
    registry = root / "plugins_registry"
    data = root / "plugins" / driver
    registration = _first_fitting(registry, _registrations(driver, pod_uid))
    if registration is None:
        shortest = registry / list(_registrations(driver, pod_uid))[-1]
        raise UsageError(
            f"no socket fits below it: paths of sockets have at most {MAX_PATH_BYTES} bytes, and "
            f"{shortest} has {len(bytes(shortest))}",
            where=f"--kubelet-dir {kubelet_dir}",
            hint="give the kubelet a shorter --root-dir, or reach it through a shorter link",
        )
    # The kubelet also accepts both services on one socket.
    return SocketPaths(_first_fitting(data, _services(pod_uid)) or registration, registration)


def sockets_of_instances(paths: SocketPaths, driver: str) -> Iterator[Path]:
    """Return the sockets of other instances of this driver whose names contain the pod's uid."""
    data = paths.service.parent
    if data == paths.registration.parent:
        return  # without a pod uid the owner of a socket is unknown
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
    return next((directory / name for name in names if len(bytes(directory / name)) <= MAX_PATH_BYTES), None)


def _digest(text: str, size: int) -> str:
    import hashlib  # half a megabyte, for names that are too long as they are

    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()[:size]).rstrip(b"=").decode()


_MODE = 0o600
_HIDDEN = ".~"
_ABANDONED_AFTER_S = 60.0
"""Seconds after which a socket without a listener does not belong to a starting agent."""
_DIRECTORY_MODE = 0o750
"""As the kubelet makes its own."""


class SocketFile:
    """A socket that is bound under a hidden name and then moved to its place.

    So it is visible only once it listens and has its mode, a stale file is replaced atomically, and gRPC, which unlinks
    what it has bound, finds nothing to unlink. The kubelet's watcher ignores names that start with a dot.
    """

    def __init__(self, path: Path, replaces: SocketFile | None = None) -> None:
        """Create the directory; raises RetryableError if that fails or another process listens there."""
        self.path = path
        # Never longer than the shortest name of a socket ("dra.sock").
        self._hidden = path.with_name(f"{_HIDDEN}{os.urandom(3).hex()}")
        self._id: tuple[int, int] | None = None
        try:
            path.parent.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
            # Of agents that were killed between binding and publishing.
            remove_abandoned(path.parent.glob(f"{_HIDDEN}??????"))
            if not (replaces and replaces.is_present) and _has_listener(path):
                raise RetryableError(
                    "another process listens on this socket",
                    where=str(path),
                    hint="stop the other driver, or give one of them another --driver-name or its own --pod-uid",
                )
        except OSError as error:
            raise _refused(path, error) from error

    @property
    def address(self) -> str:
        """Where gRPC is to bind."""
        return f"unix:{quote(str(self._hidden))}"

    @property
    def published_address(self) -> str:
        """Where gRPC connects to after `publish`."""
        return f"unix:{quote(str(self.path))}"

    def publish(self) -> None:
        """Move the bound socket to its place; RetryableError where that fails."""
        try:
            self._hidden.chmod(_MODE)
            self._id = _id(self._hidden)
            self._hidden.rename(self.path)
        except OSError as error:
            raise _refused(self.path, error) from error

    @property
    def is_present(self) -> bool:
        """Return whether the published file exists and was not replaced."""
        try:
            return self._id is not None and _id(self.path) == self._id
        except OSError:
            return False

    def remove(self) -> None:
        """Remove the file, unless another one has replaced it."""
        with contextlib.suppress(OSError):
            self._hidden.unlink()
        if self.is_present:
            with contextlib.suppress(OSError):
                self.path.unlink()


def _id(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino


def remove_abandoned(paths: Iterable[Path]) -> list[Path]:
    """Remove sockets without a listener and return them; recent ones may belong to a starting agent."""
    removed = []
    for path in paths:
        with contextlib.suppress(OSError):
            if time.time() - path.lstat().st_mtime > _ABANDONED_AFTER_S and not _has_listener(path):  # noqa: TID251 - age of a file: modification times are wall time
                path.unlink()
                removed.append(path)
    return removed


def _has_listener(path: Path) -> bool:
    """Return whether a socket is in use; raises an error for any other file."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISSOCK(mode):
        raise OSError(errno.EEXIST, "the path is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        # EAGAIN: there is a listener, and its backlog is full.
        return probe.connect_ex(str(path)) in (0, errno.EAGAIN)


def _refused(path: Path, error: OSError) -> RetryableError:
    hint = "check --kubelet-dir, and that the agent may write there"
    if error.errno == errno.EROFS:
        # systemd.exec(5), ReadWritePaths=: a directory is writable for a service if it exists when the service starts.
        hint += "; a service needs the drop-in kubernetes.conf, and a restart if the directory was made after its start"
    return RetryableError(
        f"the plugin's socket cannot be made: {error.strerror}", where=str(error.filename or path), hint=hint
    )
