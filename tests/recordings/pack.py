"""Packs a recording of a tree, for this folder: `PYTHONPATH=tests python -m recordings.pack ROOT NAME`.

ROOT has `sys`, or the nodes of a KFD topology, of a machine that another project recorded; or it is a recording, or the
name of a profile of simulated hosts.
"""

from __future__ import annotations

import lzma
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from deploy.archives import extract

import dra_simulate
from dra_agent.doctor.record import record
from dra_agent.host import Host
from dra_agent.recording import is_recording

from .instances import divide

DATA = Path(__file__).parent / "data"
KFD = Path("sys/class/kfd/kfd/topology")


def pack(root: str, name: str) -> None:
    """Record and pack it; the archive does not depend on the user and the time."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        record(_host(root, work), work / name)
        path = DATA / f"{name}.tar.xz"
        with lzma.open(path, "w", preset=9) as file, tarfile.open(fileobj=file, mode="w") as archive:
            for member in sorted((work / name).rglob("*")):
                archive.add(member, f"{name}/{member.relative_to(work / name)}", recursive=False, filter=_plain)


def unpack(name: str, target: Path) -> Path:
    """Unpack a committed recording; returns its directory."""
    with tarfile.open(DATA / f"{name}.tar.xz") as archive:
        extract(archive, target)
    return target / name


def _host(root: str, work: Path) -> Host:
    if root in dra_simulate.profiles() or is_recording(Path(root)):
        host = dra_simulate.build(root, work / "host")
        if root == "mixed":
            divide(host)
        return host
    path = Path(root)
    nodes = next((one for one in (path / "topology/nodes", path / "nodes") if one.is_dir()), None)
    if nodes is not None:
        (work / "host" / KFD).mkdir(parents=True)
        for folder in ("sys/bus/pci/devices", "dev", "proc"):
            (work / "host" / folder).mkdir(parents=True)
        shutil.copytree(nodes, work / "host" / KFD / "nodes", symlinks=True)
        path = work / "host"
    return Host(path / "sys", path / "dev", path / "proc", path / "libnvidia-ml.so.1")


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mtime = member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.isdir() else 0o644
    return member


if __name__ == "__main__":
    pack(sys.argv[1], sys.argv[2])
