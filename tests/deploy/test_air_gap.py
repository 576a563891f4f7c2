"""The commands of docs/how-to/install/air-gap.md that carry an installation to a host without internet access."""

from __future__ import annotations

import re
import shutil
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/how-to/install/air-gap.md"
CONFIG = "etc/dra-agent/config.toml"
LIBRARY = "usr/local/lib/dra-agent"


def commands(folder: Path) -> tuple[str, list[str]]:
    """Return the command that packs a staged tree, and those that unpack it on the host, both below a directory."""
    page = PAGE.read_text()
    packing = re.findall(r"^tar -C /tmp/stage .*", page, re.MULTILINE)
    unpacking = re.findall(r"^tar -C / .*", page, re.MULTILINE)
    assert len(packing) == 1 and unpacking
    stage, host = f"-C {folder / 'stage'} ", f"-C {folder / 'host'} "
    return packing[0].replace("-C /tmp/stage ", stage), [line.replace("-C / ", host) for line in unpacking]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """The archive of an installation that a user with a strict umask staged."""
    for name, text in ((CONFIG, "standalone = true\n"), (f"{LIBRARY}/module.py", "new = 1\n")):
        file = tmp_path / "stage" / name
        file.parent.mkdir(parents=True)
        file.write_text(text)
        file.chmod(0o600)
    for folder in (tmp_path / "stage").rglob("*/"):
        folder.chmod(0o700)
    if shutil.which("tar") is None:
        pytest.skip("tar is not installed")
    subprocess.run(commands(tmp_path)[0], shell=True, cwd=tmp_path, check=True)
    return tmp_path / "dra-agent.tar"


def unpack(folder: Path) -> None:
    for command in commands(folder)[1]:
        subprocess.run(command, shell=True, cwd=folder, check=True)


def test_files_belong_to_root_and_are_readable(archive: Path) -> None:
    with tarfile.open(archive) as opened:
        members = opened.getmembers()
    assert {(member.uid, member.gid) for member in members} == {(0, 0)}
    assert {oct(member.mode) for member in members if member.isdir()} == {"0o755"}
    assert {oct(member.mode) for member in members if member.isfile()} == {"0o644"}
    assert {member.name.split("/")[0] for member in members} == {"etc", "usr"}, "not the root directory itself"


def test_directories_of_the_host_keep_their_mode(archive: Path) -> None:
    folder = archive.parent
    for path, mode in (("host/etc", 0o751), ("host/usr", 0o711), ("host/usr/local", 0o750)):
        (folder / path).mkdir(parents=True, exist_ok=True)
        (folder / path).chmod(mode)
    unpack(folder)
    modes = {path: stat.S_IMODE((folder / "host" / path).stat().st_mode) for path in ("etc", "usr", "usr/local")}
    assert modes == {"etc": 0o751, "usr": 0o711, "usr/local": 0o750}
    assert (folder / "host" / CONFIG).exists() and (folder / "host" / LIBRARY).is_dir()


def test_an_upgrade_replaces_files_and_keeps_the_configuration(archive: Path) -> None:
    host = archive.parent / "host"
    for name in (CONFIG, f"{LIBRARY}/module.py"):
        (host / name).parent.mkdir(parents=True)
        (host / name).write_text("earlier\n")
    unpack(archive.parent)
    assert (host / CONFIG).read_text() == "earlier\n"
    assert (host / LIBRARY / "module.py").read_text() == "new = 1\n"
