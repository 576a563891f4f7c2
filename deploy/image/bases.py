"""`make image-base`: local images in place of the two that deploy/Containerfile names, for machines without a registry.

The base is a Debian with Python, made from packages by mmdebstrap; its name contains the suite, and its packages are
those of today. The other one has the Rust toolchain of this machine. Requires root.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from deploy.image.buildah import Buildah, BuildError

BASE = "localhost/dra-agent-base:bookworm"
RUST = "localhost/dra-agent-rust:local"
SUITE = "bookworm"
PACKAGES = "ca-certificates,python3,python3-venv"
MIRROR = "http://deb.debian.org/debian"
LOCAL_FILES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pip.conf")
"""How this machine reaches package registries; none of them gets into the agent's image."""


def main() -> int:
    """Create the images that are missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replace", action="store_true", help="replace existing images")
    args = parser.parse_args()
    try:
        buildah = Buildah()
        for name, create in ((BASE, create_base), (RUST, create_rust)):
            if args.replace or not buildah.has(name):
                create(buildah)
                print(f"created {name}")
    except BuildError as error:
        print(f"image-base: {error}", file=sys.stderr)
        return 1
    return 0


def create_base(buildah: Buildah) -> None:
    """Create the base from Debian packages."""
    if shutil.which("mmdebstrap") is None:
        raise BuildError("mmdebstrap is not installed (Debian package mmdebstrap)")
    with tempfile.TemporaryDirectory(prefix="dra-agent-base-") as folder:
        archive = Path(folder) / "base.tar"
        command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES}", SUITE, str(archive), MIRROR]
        subprocess.run(command, check=True)
        container = buildah.run("from", "scratch")
        buildah.run("add", container, str(archive), "/")
        for name in LOCAL_FILES:
            if Path(name).exists():
                buildah.run("copy", container, name, name)
        buildah.commit(container, BASE)


def create_rust(buildah: Buildah) -> None:
    """Create the image with the toolchain that rustc of this machine belongs to, without its documentation."""
    done = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"rustc: {done.stderr.strip()}")
    sysroot = Path(done.stdout.strip()).resolve()
    native = f"{platform.machine()}-unknown-linux-gnu"
    container = buildah.run("from", "scratch")
    toolchain = "/usr/local/rustup/toolchain"
    for name in ("bin/cargo", "bin/rustc", "lib/rustlib/components"):
        buildah.run("copy", container, str(sysroot / name), f"{toolchain}/{name}")
    for library in sorted((sysroot / "lib").glob("*.so*")):
        buildah.run("copy", container, str(library), f"{toolchain}/lib/{library.name}")
    buildah.run("copy", container, str(sysroot / "lib/rustlib" / native), f"{toolchain}/lib/rustlib/{native}")
    with tempfile.TemporaryDirectory(prefix="dra-agent-rust-") as folder:
        links = Path(folder) / "bin"
        links.mkdir()
        for name in ("cargo", "rustc"):
            (links / name).symlink_to(f"{toolchain}/bin/{name}")
        buildah.run("copy", container, str(folder), "/usr/local/cargo")
    buildah.commit(container, RUST)


if __name__ == "__main__":
    sys.exit(main())
