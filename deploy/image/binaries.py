"""Puts the binaries that cargo has just compiled into the packages, and checks them.

Binaries that are already there are removed first, so that those of another build or another machine cannot get into
an image, even if the build context contains them.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import struct
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXTENSION = Path("dra_agent/_native.abi3.so")
HOOK = Path("dra_agent/device_setup/lib/dra-agent-hook")
FAKE = Path("dra_simulate/lib/libnvidia-ml.so.1")
# Fields of ELF: https://refspecs.linuxfoundation.org/elf/gabi4+/ch4.eheader.html, ch5.pheader.html, ch5.dynamic.html
ELF64_LITTLE_ENDIAN = b"\x7fELF\x02\x01"
MACHINES = {"x86_64": 62, "aarch64": 183}
PT_DYNAMIC, PT_INTERP, DT_NEEDED = 2, 3, 1


class BinaryError(Exception):
    """A binary that must not be shipped."""


def main() -> int:
    """Install the binaries below `--python`; return 1 with the reason if one of them is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", type=Path, default=ROOT / "python", help="directory of the Python packages")
    parser.add_argument("--target", type=Path, default=ROOT / "target", help="cargo's target directory")
    parser.add_argument("--profile", default="dist", help="cargo profile of the three binaries")
    args = parser.parse_args()
    built: Path = args.target / args.profile
    try:
        install(built, args.python)
        check_hook(args.python / HOOK, version(ROOT))
    except (BinaryError, OSError) as error:
        print(f"binaries: {error}", file=sys.stderr)
        return 1
    return 0


def install(built: Path, packages: Path) -> None:
    """Replace the binaries of the packages with those of the build."""
    for old in (*packages.rglob("*.so"), *(packages / HOOK).parent.glob("*"), *(packages / FAKE).parent.glob("*")):
        old.unlink()
    for name, target in (("lib_native.so", EXTENSION), ("dra-agent-hook", HOOK), ("libnvidia_ml.so", FAKE)):
        check_machine(built / name)
        (packages / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(built / name, packages / target)
    (packages / HOOK).chmod(0o755)


def check_machine(path: Path) -> None:
    """Raise BinaryError unless the file is a 64-bit ELF file for this machine."""
    header = path.read_bytes()[:64]
    if len(header) < 64 or not header.startswith(ELF64_LITTLE_ENDIAN):
        raise BinaryError(f"{path} is not a 64-bit ELF file")
    (machine,) = struct.unpack_from("<H", header, 18)
    if machine != MACHINES.get(platform.machine()):
        raise BinaryError(f"{path} is for ELF machine {machine}, and this is {platform.machine()}")


def check_hook(path: Path, expected: str) -> None:
    """Raise BinaryError unless the hook is static, and reports this version."""
    check_machine(path)
    content = path.read_bytes()
    (table,) = struct.unpack_from("<Q", content, 32)
    size, count = struct.unpack_from("<HH", content, 54)
    for number in range(count):
        kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", content, table + number * size)
        if kind == PT_INTERP:
            raise BinaryError(f"{path} needs a dynamic loader; it must be static, because it runs on hosts of any kind")
        # A static executable at any address has a dynamic section, but requires no library.
        if kind == PT_DYNAMIC and any(
            tag == DT_NEEDED for tag, _ in struct.iter_unpack("<qQ", content[offset : offset + length // 16 * 16])
        ):
            raise BinaryError(f"{path} requires a shared library; it must be static")
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, timeout=60)
    if done.stdout.strip() != f"dra-agent-hook {expected}":
        raise BinaryError(f"{path} --version prints {done.stdout.strip()!r}, and the version is {expected}")


def version(root: Path) -> str:
    """Return the version of the crates."""
    found: str = tomllib.loads((root / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    return found


if __name__ == "__main__":
    sys.exit(main())
