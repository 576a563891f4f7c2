"""The survey of NVML in processes with different privileges: the driver refuses some calls without CAP_SYS_ADMIN.

nvml.h documents NVML_ERROR_NO_PERMISSION for the queries of MIG instances and placements. `main` is the process.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dra_agent.deadline import Deadline
from dra_agent.doctor.record.nvml_survey import survey
from dra_agent.host import Host
from dra_agent.inventory.nvidia.nvml_client import acquire
from dra_agent.inventory.settings import InventorySettings
from dra_simulate import inject, nvml

TIMEOUT_S = 300.0
NO_ACCESS = nvml.Access(admin=False, config=False, monitor=False)
"""Of a process that may only list MIG devices."""
WITHOUT = "without CAP_SYS_ADMIN"
WITHOUT_SYS_ADMIN = ("--bounding-set=-sys_admin", "--inh-caps=-sys_admin")


def modes(host: Host) -> dict[str, tuple[str, ...]]:
    """Return command prefixes by name: as this user, and without CAP_SYS_ADMIN where that can be dropped.

    On a simulated host the library refuses without a capability being dropped.
    """
    found: dict[str, tuple[str, ...]] = {"root" if os.geteuid() == 0 else "user": ()}
    tool = shutil.which("setpriv")
    if os.geteuid() == 0 and tool is not None:
        found[WITHOUT] = (tool, *WITHOUT_SYS_ADMIN)
    elif is_simulated(host):
        found[WITHOUT] = ()
    return found


def run(prefix: tuple[str, ...], host: Host, addresses: list[str]) -> list[dict[str, Any]]:
    """Make the survey in another process."""
    library = "" if host.nvml_library is None else str(host.nvml_library)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [*prefix, sys.executable, __file__, library, *addresses],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    responses: list[dict[str, Any]] = json.loads(done.stdout)
    return responses


@contextmanager
def permitted(host: Host, name: str) -> Iterator[None]:
    """On a simulated host, let the library refuse what the driver refuses without the capability."""
    if not is_simulated(host) or name != WITHOUT:
        yield
        return
    root = host.sysfs.parent
    before = nvml.read(root / "lib").access
    inject.set_access(root, NO_ACCESS)
    try:
        yield
    finally:
        inject.set_access(root, before)


def is_simulated(host: Host) -> bool:
    """Whether the host is not this machine."""
    return host.dev != Path("/dev")


def has_sys_admin() -> bool:
    """Whether this process has CAP_SYS_ADMIN (bit 21, capabilities(7))."""
    status = Path("/proc/self/status").read_text()
    effective = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(effective, 16) >> 21 & 1)


def main() -> None:
    """Print the responses as JSON."""
    library, *addresses = sys.argv[1:]
    client = acquire(Path(library) if library else None, InventorySettings().nvml_timeout)
    client.start()
    found = [
        {"gpu": one.gpu, "call": one.call, "code": one.code, "value": one.value, "error": one.error, "ms": one.ms}
        for one in survey(client, addresses, Deadline.of(TIMEOUT_S))
    ]
    client.close()
    found.append(
        {"gpu": "", "call": "CAP_SYS_ADMIN", "code": int(has_sys_admin()), "value": None, "error": "", "ms": 0}
    )
    print(json.dumps(found, default=str))


if __name__ == "__main__":
    main()
