"""Collects the file system of the image: the interpreter, its standard library, what they link, and the agent.

The image begins from nothing, so it has no shell, no package manager and no compiler. It runs in the build stage, with
the interpreter that is copied. Files keep their paths; the libraries of the agent are those of requirements.lock.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from deploy.install import launcher

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = Path("/usr/local/lib/dra-agent")
COMMAND = Path("/usr/local/bin/dra-agent")
PACKAGES = ("dra_agent", "dra_cluster")
DEBUG_PACKAGES = ("dra_simulate",)
"""Python packages of this repository that only the debug variant has."""
NONROOT_UID = 65532
"""The user of pods that need no file of the host, as in the chart's check of the configuration."""
DIRECTORIES = ("dev", "etc", "proc", "run", "sys", "usr/bin", "usr/lib", "usr/sbin", "usr/local/bin", "var/lib")
USR_LINKS = ("bin", "lib", "lib64", "sbin")
EXCLUDED_FOLDERS = re.compile(
    r"(^|/)(__pycache__|site-packages|dist-packages|test|tests|idlelib|tkinter|ensurepip|turtledemo|lib2to3|venv"
    r"|pydoc_data|config-[^/]*)/"
)
"""Parts of the standard library that the agent never loads."""
EXCLUDED_MODULES = re.compile(
    r"/(_tkinter|_curses|_curses_panel|readline|_dbm|_gdbm|nis|ossaudiodev|_test[a-z]*|_xx[a-z]*|xx[a-z]*|_ctypes_test)\."
)
"""Extension modules that would bring libraries of terminals and databases, and modules for tests of Python."""
COMPILE = """
import compileall, py_compile, sys
mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
for staged, path in zip(sys.argv[1::2], sys.argv[2::2]):
    if not compileall.compile_dir(staged, quiet=2, workers=1, stripdir=staged, prependdir=path, invalidation_mode=mode):
        sys.exit(f"{path}: cannot be compiled")
"""
TRY = """
import importlib, sys
sys.path.insert(0, sys.argv[1])
names = "asyncio ctypes grpc google.protobuf h11 hashlib jeepney msgspec prometheus_client pynvml pyroute2 rich sqlite3"
for name in f"argcomplete {names} ssl yaml".split():
    importlib.import_module(name)
import dra_agent._native
"""


def main() -> int:
    """Write the root directories of the image and of what its debug variant adds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--libraries", type=Path, required=True, help="directory with the agent's libraries (pip)")
    parser.add_argument("--root", type=Path, required=True, help="root of the image, a new directory")
    parser.add_argument("--debug", type=Path, required=True, help="what the debug variant adds, a new directory")
    parser.add_argument("--busybox", type=Path, help="static busybox of the debug variant", default="/bin/busybox")
    args = parser.parse_args()
    python = Path(os.path.realpath(sys.executable))
    write_skeleton(args.root)
    copy_python(args.root, python)
    copy_agent(args.root, args.debug, args.libraries, python)
    copy_shared_libraries(args.root)
    write_busybox(args.debug, args.busybox)
    compile_python(args.root, LIBRARY, Path(sysconfig.get_path("stdlib")))
    compile_python(args.debug, LIBRARY)
    for root in (args.root, args.debug):
        restrict(root)
    try_out(args.root, python)
    return 0


def write_skeleton(root: Path) -> None:
    """Create the directories, the links of a merged /usr, and the few files of /etc that libraries read."""
    for name in DIRECTORIES:
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in USR_LINKS:
        (root / "usr" / name).mkdir(exist_ok=True)
        (root / name).symlink_to(f"usr/{name}")
    (root / "var/run").symlink_to("/run")
    (root / "tmp").mkdir()
    nonroot = f"nonroot:x:{NONROOT_UID}:{NONROOT_UID}:nonroot:/:/sbin/nologin\n"
    (root / "etc/passwd").write_text(f"root:x:0:0:root:/:/sbin/nologin\n{nonroot}")
    (root / "etc/group").write_text(f"root:x:0:\nnonroot:x:{NONROOT_UID}:\n")
    (root / "etc/nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")
    # Scanners of images read them, and libnvidia-container chooses the directory of its libraries by debian_version:
    # NVIDIA/libnvidia-container src/nvc_container.c, copy_config (commit 12a66bbb).
    for name in ("etc/os-release", "etc/debian_version"):
        shutil.copyfile(Path("/") / name, root / name)


def copy_python(root: Path, python: Path) -> None:
    """Copy the interpreter and its standard library without byte code."""
    copy(python, root)
    library = Path(sysconfig.get_path("stdlib"))
    for file in sorted(library.rglob("*")):
        name = f"/{file.relative_to(library)}"
        if file.is_file() and not EXCLUDED_FOLDERS.search(name) and not EXCLUDED_MODULES.search(name):
            copy(file, root)


def copy_agent(root: Path, debug: Path, libraries: Path, python: Path) -> None:
    """Copy the agent and its libraries; simulated hosts go to the debug variant."""
    target = root / LIBRARY.relative_to("/")
    ignored = shutil.ignore_patterns("__pycache__", "*.pyi", "*.pyx*", "*.pxd*", "*.h", "bin")
    shutil.copytree(libraries, target, ignore=ignored)
    for package in PACKAGES:
        shutil.copytree(ROOT / "python" / package, target / package, ignore=ignored)
    for package in DEBUG_PACKAGES:
        shutil.copytree(ROOT / "python" / package, debug / LIBRARY.relative_to("/") / package, ignore=ignored)
    command = root / COMMAND.relative_to("/")
    command.write_text(launcher(LIBRARY, python, "dra_agent.cli.main"))
    command.chmod(0o755)


def copy_shared_libraries(root: Path) -> None:
    """Copy what the dynamic loader needs for all binaries, and write its cache."""
    binaries = [path for path in root.rglob("*") if is_elf(path)]
    for name in sorted(shared_libraries(binaries)):
        # The name that binaries ask for is often a link to the file.
        link, file = Path("/") / name, Path(os.path.realpath(name))
        copy(file, root)
        placed = root / os.path.realpath(link.parent).lstrip("/") / link.name
        if not placed.exists():
            placed.parent.mkdir(parents=True, exist_ok=True)
            placed.symlink_to(os.path.relpath(root / file.relative_to("/"), placed.parent))
    subprocess.run(["ldconfig", "-X", "-r", str(root)], check=True)
    shutil.rmtree(root / "var/cache", ignore_errors=True)


def shared_libraries(binaries: Iterable[Path]) -> set[str]:
    """Return the libraries that binaries need, as absolute paths of this machine.

    Raises SystemExit if one is missing.
    """
    output = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True, check=False).stdout
    if missing := re.findall(r"(\S+) => not found", output):
        raise SystemExit(f"libraries that the base does not have: {', '.join(sorted(set(missing)))}")
    own = re.compile(r"^\t(?:\S+ => )?(/\S+) \(0x", re.MULTILINE)
    return {found for found in own.findall(output) if not found.startswith("/image/")}


def is_elf(path: Path) -> bool:
    """Return whether a regular file is a binary."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def is_script(path: Path) -> bool:
    """Return whether a file names its interpreter."""
    with path.open("rb") as file:
        return file.read(2) == b"#!"


def write_busybox(debug: Path, busybox: Path) -> None:
    """Put a shell and its tools into the debug variant."""
    folder = debug / "usr/bin"
    folder.mkdir(parents=True)
    shutil.copyfile(busybox, folder / "busybox")
    (folder / "busybox").chmod(0o755)
    tools = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    for tool in sorted(set(tools) - {"busybox"}):
        (folder / tool).symlink_to("busybox")


def compile_python(root: Path, *paths: Path) -> None:
    """Write byte code: the agent's file system is read-only, and a start would otherwise compile every module."""
    staged: list[str] = []
    for path in paths:
        staged += [str(root / path.relative_to("/")), str(path)]
    # Byte code depends on the order of sets, and so on the seed of hashes.
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    subprocess.run([sys.executable, "-I", "-c", COMPILE, *staged], check=True, env=environment)


def restrict(root: Path) -> None:
    """Make all files writable by root alone and readable by all; programs and directories stay executable.

    Some wheels mark texts as executable.
    """
    for path in root.rglob("*"):
        if path.is_symlink():
            continue
        mode = path.stat().st_mode
        executable = path.is_dir() or (mode & 0o111 != 0 and (is_elf(path) or is_script(path)))
        path.chmod(0o755 if executable else 0o644)
    if (root / "tmp").is_dir():
        (root / "tmp").chmod(0o1777)


def try_out(root: Path, python: Path) -> None:
    """Import what the agent imports, with the files of the image alone."""
    library = str(LIBRARY)
    for arguments in ([str(python), "-IB", "-c", TRY, library], [str(COMMAND), "--version"]):
        subprocess.run(
            ["chroot", str(root), *arguments], check=True, env={"LANG": "C.UTF-8", "PATH": os.environ["PATH"]}
        )


def copy(file: Path, root: Path) -> None:
    """Copy a file of this machine to the same path of the image, and the content of a link."""
    target = root / os.path.realpath(file.parent).lstrip("/") / file.name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, target)
    shutil.copymode(file, target)


if __name__ == "__main__":
    sys.exit(main())
