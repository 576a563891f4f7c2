"""Makes interfaces, addresses and routes in a network namespace of its own, and prints what the kernel shows of them.

Run as a program by root: its input is JSON, a list of arguments of `ip`; its output is JSON by path. Exit code 3: the
kernel has no such kind of interface.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

UNSUPPORTED = 3
PROC_FILES = ("route", "fib_trie", "ipv6_route", "if_inet6")
_TENTATIVE = 0x40
_SETTLED_S = 10.0


def read(commands: list[list[str]]) -> dict[str, str]:
    """Return links (with a leading "-> ") and files of class/net, and the files of /proc/net."""
    for command in commands:
        done = subprocess.run(["ip", *command], capture_output=True, text=True, check=False)
        if "Unknown device type" in done.stderr:
            sys.exit(UNSUPPORTED)
        assert done.returncode == 0, (command, done.stderr)
    _settle()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["mount", "-t", "sysfs", "none", folder], check=True)
        try:
            found = _sysfs(Path(folder))
        finally:
            subprocess.run(["umount", folder], check=True)
    return found | {f"proc/net/{name}": Path(f"/proc/net/{name}").read_text() for name in PROC_FILES}


def _settle() -> None:
    """Wait until no IPv6 address of an interface with a link is tentative."""
    end = time.monotonic() + _SETTLED_S
    while time.monotonic() < end:
        links = json.loads(subprocess.run(["ip", "-json", "link"], capture_output=True, check=True).stdout)
        up = {link["ifname"] for link in links if "LOWER_UP" in link["flags"]}
        rows = [line.split() for line in Path("/proc/net/if_inet6").read_text().splitlines()]
        if not any(int(row[4], 16) & _TENTATIVE for row in rows if row[5] in up):
            return
        time.sleep(0.05)


def _sysfs(root: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in os.listdir(root / "class/net"):  # noqa: PTH208 - names, also of files among the links
        top = root / "class/net" / name
        for folder, folders, files in os.walk(top.resolve()):
            inside = Path(folder)
            for one in (*folders, *files):
                path = inside / one
                key = f"sys/devices/virtual/net/{path.relative_to(root / 'devices/virtual/net')}"
                if path.is_symlink():
                    found[key] = f"-> {path.readlink()}"
                elif one in files:
                    try:
                        found[key] = path.read_text(errors="replace")
                    except OSError:
                        continue
    return found


if __name__ == "__main__":
    json.dump(read(json.load(sys.stdin)), sys.stdout)
