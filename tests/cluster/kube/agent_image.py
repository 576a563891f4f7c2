"""A container image of the agent without a registry: the files of `make install` and the Python of the build.

It replaces the image of deploy/Containerfile, which builds on an image of Python; the agent in it has the same files
at the same paths and the same entry point.
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
EXCLUDED = re.compile(
    r"/(site-packages|test|tests|idlelib|tkinter|ensurepip|turtledemo|config-[^/]*)(/|$)|/__pycache__/"
)
"""Parts of Python's standard library that the agent never loads. Bytecode is excluded because its paths differ."""


def write(path: Path, staged: Path) -> None:
    """Write the image for `ctr images import`; `staged` is an empty directory for its content."""
    command = [sys.executable, str(ROOT / "deploy/install.py"), "--destdir", str(staged), "--prefix", "/usr/local"]
    subprocess.run(command, check=True, capture_output=True)
    config = {"Entrypoint": ["/usr/local/bin/dra-agent"], "Env": ["PATH=/usr/local/bin:/bin"]}
    image.pack(path, f"{NAME}:{TAG}", [image.busybox(), _layer(staged)], config)


def _layer(staged: Path) -> bytes:
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w") as tar:
        for source, target in _files(staged):
            # Links between libraries become files: their targets may be missing in the image.
            tar.add(
                source.resolve() if source.is_symlink() else source, arcname=str(target).lstrip("/"), recursive=False
            )
    return memory.getvalue()


def _files(staged: Path) -> Iterator[tuple[Path, Path]]:
    """Yield each file as (path on this machine, path in the image)."""
    found = {Path("/") / file.relative_to(staged): file for file in staged.rglob("*") if file.is_file()}
    # The first line of the command names the interpreter.
    launcher = (staged / "usr/local/bin/dra-agent").read_text()
    python = Path(launcher.partition("\n")[0].removeprefix("#!").split()[0])
    found[python] = python.resolve()
    library = Path(sysconfig.get_path("stdlib"))
    found |= {file: file for file in library.rglob("*") if file.is_file() and not EXCLUDED.search(str(file))}
    binaries = [source for target, source in found.items() if ".so" in target.name or target.parent.name == "bin"]
    found |= {library_file: library_file for library_file in _shared_libraries(binaries)}
    yield from ((source, target) for target, source in sorted(found.items()))


def _shared_libraries(binaries: list[Path]) -> set[Path]:
    """Return the libraries that the dynamic loader needs for these binaries, as absolute paths of this machine."""
    output = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True, check=False).stdout
    return {Path(found) for found in re.findall(r"(?:=> |^\s+)(/\S+) \(0x", output, re.MULTILINE)}
