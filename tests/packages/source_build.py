"""`make test-sources`: the quickstart of README.md without hardware, from the sources to the claim, in a clean root.

A user without permissions pastes all lines, `make build` included. The root has the packages that the README asks for;
Rust, the network and trusted certificates are those of this machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import quickstart
from packages.machine import base_root, missing_requirement

ROOT = Path(__file__).resolve().parents[2]
HEADING = "Try it without hardware"
TOOLS = "ca-certificates,gcc,libc6-dev,make,python3,python3-venv"
VISITOR = 1000
HOME = "/home/visitor"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
CHROOT = """
set -e
lower=$1 work=$2 rust=$3; shift 3
mount --make-rprivate /
root=$work/root
mkdir -p $work/upper $work/work $root
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$work/upper,workdir=$work/work" $root
mkdir -p $root/opt/rust
mount --bind -o ro "$rust" $root/opt/rust
mount -t proc proc $root/proc
mount -t tmpfs -o mode=755 tmpfs $root/dev
for name in null zero full random urandom tty; do
    touch $root/dev/$name
    mount --bind /dev/$name $root/dev/$name
done
mkdir -m 1777 $root/dev/shm
cp --dereference /etc/resolv.conf $root/etc/resolv.conf
exec chroot $root "$@"
"""


def main() -> int:
    """Run the quickstart and write its report; return 1 if a line fails."""
    if reason := missing_requirement():
        print(f"test-sources: {reason}", file=sys.stderr)
        return 1
    # On a disk: the build writes gigabytes.
    work = ROOT / f"target/clean-root-{os.getpid()}"
    work.mkdir(parents=True)
    try:
        return run(work)
    finally:
        shutil.rmtree(work)


def run(work: Path) -> int:
    """Run the quickstart below a directory."""
    pasted = quickstart.lines(HEADING)
    home = work / f"upper{HOME}"
    add_sources(home)
    script = "\n".join(["set -e", f"cd {HOME}/dra-agent", *quickstart.timed(pasted, Path(HOME) / "times")])
    environment = {
        "HOME": HOME,
        "PATH": "/opt/rust/bin:/usr/bin:/bin",
        "PIP_CERT": f"{HOME}/certificates.pem",
        "CARGO_HTTP_CAINFO": f"{HOME}/certificates.pem",
    }
    rust = subprocess.run(["rustc", "--print", "sysroot"], cwd=ROOT, capture_output=True, text=True, check=True)
    namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    chroot: list[str | Path] = ["sh", "-c", CHROOT, "sh", base_root(TOOLS), work, rust.stdout.strip()]
    user = ["setpriv", f"--reuid={VISITOR}", f"--regid={VISITOR}", "--clear-groups", "--no-new-privs"]
    shell = ["env", "-i", *(f"{name}={value}" for name, value in environment.items()), "bash", "-c", script]
    ran = subprocess.run([*namespaces, *chroot, *user, *shell], stdout=subprocess.PIPE, text=True, check=False)
    print(ran.stdout)
    if ran.returncode != 0 or "resourceclaim/gpu-and-nic-one-switch created: prepared" not in ran.stdout:
        print(f"test-sources: exit code {ran.returncode}", file=sys.stderr)
        return 1
    heading = f"{HEADING}, from sources in a clean root"
    quickstart.record(heading, pasted, home / "times", left_out="the installation of Rust")
    return 0


def add_sources(home: Path) -> None:
    """Put the last commit, and the certificates of this machine, into a home directory."""
    sources = home / "dra-agent"
    sources.mkdir(parents=True)
    archive = subprocess.run(["git", "-C", ROOT, "archive", "HEAD"], stdout=subprocess.PIPE, check=True)
    subprocess.run(["tar", "-x", "-C", sources], input=archive.stdout, check=True)
    # Where this machine has an authority for downloads, a clean root does not trust it.
    shutil.copy(CERTIFICATES, home / "certificates.pem")
    subprocess.run(["chown", "--recursive", f"{VISITOR}:{VISITOR}", home], check=True)


if __name__ == "__main__":
    sys.exit(main())
