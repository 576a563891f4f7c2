"""A container image of the agent without a registry: what `make install` installs, and the Python of the build.

It stands for what deploy/Containerfile makes on top of an image of Python; the agent in it is the same files at the
same paths, started by the same command.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from pathlib import Path

from . import image

NAME = "localhost/dra-agent"
TAG = "test"
ROOT = Path(__file__).resolve().parents[3]
LEFT_OUT = re.compile(
    r"/(site-packages|test|tests|idlelib|tkinter|ensurepip|turtledemo|config-[^/]*)(/|$)|/__pycache__/"
)
"""Of Python's own library: what the agent never loads. Byte code is left out because it belongs to other paths."""


def write(path: Path, staged: Path) -> None:
    """Write the image, for `ctr images import`; `staged` is an empty directory that it is put together in."""
    command = [sys.executable, str(ROOT / "deploy/install.py"), "--destdir", str(staged), "--prefix", "/usr/local"]
    subprocess.run(command, check=True, capture_output=True)
    config = {"Entrypoint": ["/usr/local/bin/dra-agent"], "Env": ["PATH=/usr/local/bin:/bin"]}
    image.pack(path, f"{NAME}:{TAG}", [image.busybox(), _layer(staged)], config)


def _layer(staged: Path) -> bytes:
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w") as tar:
        for source, target in _files(staged):
            # Links between libraries become files: the image need not have their targets.
            tar.add(
                source.resolve() if source.is_symlink() else source, arcname=str(target).lstrip("/"), recursive=False
            )
    return memory.getvalue()


def _files(staged: Path) -> Iterator[tuple[Path, Path]]:
    """Each file as (where it is, where the image has it)."""
    found = {Path("/") / file.relative_to(staged): file for file in staged.rglob("*") if file.is_file()}
    # The first line of the command names the interpreter.
    python = Path(sys.base_prefix) / "bin" / Path(sys.executable).name
    found[python] = python.resolve()
    library = Path(sysconfig.get_path("stdlib"))
    found |= {file: file for file in library.rglob("*") if file.is_file() and not LEFT_OUT.search(str(file))}
    binaries = [source for target, source in found.items() if ".so" in target.name or target.parent.name == "bin"]
    found |= {needed: needed for needed in _shared_libraries(binaries)}
    yield from ((source, target) for target, source in sorted(found.items()))


def _shared_libraries(binaries: list[Path]) -> set[Path]:
    """What the dynamic loader needs beside them, as absolute paths of this machine."""
    said = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True, check=False).stdout
    return {Path(found) for found in re.findall(r"(?:=> |^\s+)(/\S+) \(0x", said, re.MULTILINE)}
