"""The output of lspci and lstopo for a sysfs tree: the address of every function with its parents, root first."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

Parents = dict[str, tuple[str, ...]]


def lspci(tree: Path) -> tuple[Parents, dict[str, tuple[str, str]]]:
    """Parents, and class with ids, of every function, as `lspci -t` shows them."""
    if shutil.which("lspci") is None:
        pytest.skip("lspci is not installed")
    command = ["lspci", "-A", "linux-sysfs", "-O", f"sysfs.path={tree}/sys/bus/pci", "-D", "-PP", "-n"]
    # Without `config` files, which some recorded trees lack, lspci reports errors and continues.
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    parents, identities = {}, {}
    for line in done.stdout.splitlines():
        path, class_code, ids = line.split()[:3]
        domain = path.split(":", 1)[0]
        first, *rest = path.split("/")
        chain = [first, *(f"{domain}:{part}" for part in rest)]
        parents[chain[-1]] = tuple(chain[:-1])
        identities[chain[-1]] = (class_code.rstrip(":"), ids)
    return parents, identities


def lstopo(tree: Path) -> tuple[Parents, dict[str, str]]:
    """Parents, and root bus, of every function that lstopo shows."""
    program = shutil.which("lstopo-no-graphics")
    if program is None:
        pytest.skip("lstopo is not installed")
    environment = {
        **os.environ,
        "HWLOC_FSROOT": str(tree),
        "HWLOC_COMPONENTS": "linux,stop",
        "HWLOC_THISSYSTEM": "0",
    }
    done = subprocess.run(
        [program, "--of", "xml", "--whole-io"], capture_output=True, text=True, check=True, env=environment
    )
    parents: Parents = {}
    roots: dict[str, str] = {}

    def walk(element: ET.Element, above: tuple[str, ...], root: str) -> None:
        for child in element.findall("object"):
            if child.get("type") == "Bridge" and child.get("bridge_type") == "0-1":
                bus = re.match(r"([0-9a-f]+:)\[([0-9a-f]{2})", child.get("bridge_pci", ""))
                assert bus is not None
                walk(child, (), f"pci{bus[1]}{bus[2]}")
            elif (address := child.get("pci_busid")) is not None:
                parents[address], roots[address] = above, root
                walk(child, (*above, address), root)
            else:
                walk(child, above, root)

    walk(ET.fromstring(done.stdout), (), "")
    return parents, roots
