"""Archives whose bytes depend on their content alone: sorted, owned by root, with one time and fixed modes."""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path


def write(target: Path, folder: Path, prefix: str, epoch: int) -> None:
    """Write the files of a folder as a .tar.gz, in which their paths begin with `prefix`."""
    partial = target.with_name(f"{target.name}.partial")
    with (
        partial.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=epoch) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        for path in sorted(folder.rglob("*")):
            if not path.is_file():
                continue
            member = tarfile.TarInfo(f"{prefix}/{path.relative_to(folder)}")
            member.size, member.mtime = path.stat().st_size, epoch
            member.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            with path.open("rb") as content:
                tar.addfile(member, content)
    partial.rename(target)
