"""Settings of an interface in files: of its NAPI contexts and queues in /sys, and sysctl settings in /proc/sys/net.

A privileged container can change those in /sys, and they stay when the interface moves (Linux 6.13: also through the
netdev family of netlink). The kernel resets those in /proc/sys to the defaults of a network namespace at each move.

Source: Documentation/ABI/testing/sysfs-class-net and sysfs-class-net-queues, Documentation/networking/ip-sysctl.rst.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_SYSCTL = Path("/proc/sys/net")
_NAPI = ("napi_defer_hard_irqs", "gro_flush_timeout", "threaded")
_DEVICE = (*_NAPI, "proto_down")
_QUEUES = (
    "queues/rx-*/rps_cpus",
    "queues/rx-*/rps_flow_cnt",
    "queues/tx-*/xps_cpus",
    "queues/tx-*/xps_rxqs",
    "queues/tx-*/tx_maxrate",
    "queues/tx-*/byte_queue_limits/limit_max",
    "queues/tx-*/byte_queue_limits/limit_min",
    "queues/tx-*/byte_queue_limits/hold_time",
    "queues/tx-*/byte_queue_limits/stall_thrs",
)
_TABLES = ("ipv4/conf", "ipv6/conf", "ipv4/neigh", "ipv6/neigh", "mpls/conf")
_DERIVED = ("mtu", "mc_forwarding")
"""The first follows the MTU of the interface, the second is read-only."""


def read(folder: Path) -> dict[str, str]:
    """Return the settings below the interface's folder in /sys/class/net, by their paths relative to it."""
    paths = [folder / name for name in _DEVICE]
    for pattern in _QUEUES:
        paths += sorted(folder.glob(pattern))
    return _texts((os.fspath(path.relative_to(folder)), path) for path in paths)


def restore(folder: Path, before: dict[str, str]) -> tuple[list[str], list[str]]:
    """Write settings that differ. Return those that were changed, and those that still differ, both as text."""
    changed: list[str] = []
    differing: list[str] = []
    for name, value in before.items():
        path = folder / name
        now = _text(path)
        if now == value:
            if name in _NAPI:
                _write(path, value)  # also of each NAPI context, for which netlink can set another one
            continue
        why = _write(path, value)
        now_set = _text(path)
        if now_set != value:
            differing.append(f"{name} {now_set} instead of {value}" + (f": {why}" if why else ""))
        else:
            changed.append(f"{name} {now} restored to {value}")
    return changed, differing


def read_sysctls(name: str) -> dict[str, str]:
    """Return the settings of an interface by table and name ("ipv4/conf/rp_filter")."""
    found: dict[str, str] = {}
    for table in _TABLES:
        folder = _SYSCTL / table / name
        try:
            paths = sorted(folder.iterdir())
        except OSError:
            continue
        found |= _texts((f"{table}/{path.name}", path) for path in paths if path.name not in _DERIVED)
    return found


def restore_sysctls(name: str, before: dict[str, str]) -> tuple[list[str], list[str]]:
    """Do the same for the interface of this name as `restore`."""
    changed: list[str] = []
    differing: list[str] = []
    for setting, value in before.items():
        table, _, entry = setting.rpartition("/")
        path = _SYSCTL / table / name / entry
        now = _text(path)
        if now == value:
            continue
        why = _write(path, value)
        if _text(path) != value:
            is_now = "is missing, it was" if now is None else f"{now} instead of"
            differing.append(f"{setting} {is_now} {value}" + (f": {why}" if why else ""))
        else:
            changed.append(f"{setting} restored to {value}")
    return changed, differing


def _texts(paths: Iterable[tuple[str, Path]]) -> dict[str, str]:
    return {name: text for name, path in paths if (text := _text(path)) is not None}


def _text(path: Path) -> str | None:
    """Return a setting; None if the interface does not have it."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None


def _write(path: Path, text: str) -> str:
    """Write in one call, as the kernel requires; return why it rejects that, otherwise ""."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(file, f"{text}\n".encode())
        finally:
            os.close(file)
    except OSError as error:
        return str(error.strerror)
    return ""
