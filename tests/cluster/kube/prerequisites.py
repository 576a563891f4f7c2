"""The prerequisites of a cluster on this machine; all missing ones are reported at once."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

CNI_PLUGINS = Path("/usr/lib/cni")
BUSYBOX = Path("/bin/busybox")
OLDEST_GO = (1, 26)


class MissingError(Exception):
    """This machine cannot run a cluster; the message names the missing parts and how to get them."""


def check(*, go: bool) -> None:
    """Raise MissingError unless all prerequisites exist; `go` if a build is still needed."""
    packages = missing_packages()
    missing = [] if os.geteuid() == 0 else ["root (containers, mounts and addresses are made)"]
    if go and (found := go_version()) < OLDEST_GO:
        version = "none" if not found else ".".join(map(str, found))
        missing.append(f"Go {OLDEST_GO[0]}.{OLDEST_GO[1]} or newer on PATH (found: {version}; https://go.dev/dl)")
    if packages:
        missing.append(f"Debian packages (apt-get install {' '.join(packages)})")
    if missing:
        raise MissingError("the cluster needs " + "; ".join(missing))


def missing_packages() -> list[str]:
    """Return the Debian packages of which a file is missing."""
    present = {
        "runc": shutil.which("runc") is not None,
        "containernetworking-plugins": all((CNI_PLUGINS / name).exists() for name in ("ptp", "host-local")),
        "busybox-static": BUSYBOX.exists() and is_static(BUSYBOX),
        "openssl": shutil.which("openssl") is not None,
        "iproute2": shutil.which("ip") is not None,
    }
    return [package for package, there in present.items() if not there]


def go_version() -> tuple[int, ...]:
    """Return (1, 26) for go1.26.8; () without Go."""
    if shutil.which("go") is None:
        return ()
    output = subprocess.run(["go", "env", "GOVERSION"], capture_output=True, text=True, check=False, cwd="/").stdout
    found = re.match(r"go(\d+)\.(\d+)", output)
    return (int(found[1]), int(found[2])) if found else ()


def is_static(binary: Path) -> bool:
    # A dynamic executable names its loader in the first page (ELF's PT_INTERP).
    with binary.open("rb") as file:
        return b"/ld-linux" not in file.read(4096)


if __name__ == "__main__":
    # For scripts: the arguments of apt-get install.
    print(" ".join(missing_packages()))
