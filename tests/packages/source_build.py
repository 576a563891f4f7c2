"""`make test-sources`: what README.md tells a stranger to run, in a clean root of Debian.

A user without permissions pastes the quickstart without hardware, `make build` included, and then runs the two commands
that set up a checkout, `make demo` and `make test`. Each of several roots begins as `make demo` left the first one, and
runs `make test` there, and again. The root has the packages that README.md names, and nothing else; Rust, the network
and trusted certificates are those of this machine, and so is Python, if one is named.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import quickstart
from packages.machine import SUITE, base_root, missing_requirement

ROOT = Path(__file__).resolve().parents[2]
HEADING = "Try it without hardware"
SUITES = {"12": SUITE, "13": "trixie", "14": "forky"}
"""Names of Debian's releases."""
VISITOR = 1000
HOME = "/home/visitor"
CHECKOUT = f"{HOME}/dra-agent"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
LOGS = ROOT / "target/test-sources"
CHROOT = """
set -e
lower=$1 work=$2 rust=$3 python=$4; shift 4
mount --make-rprivate /
root=$work/root
mkdir -p $work/upper $work/work $root
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$work/upper,workdir=$work/work" $root
mkdir -p $root/opt/rust
mount --bind -o ro "$rust" $root/opt/rust
if [ -n "$python" ]; then
    # Where it was built for; every folder above it can be entered.
    (umask 022 && mkdir -p "$root$python")
    chmod 711 "$root/root"
    mount --bind -o ro "$python" "$root$python"
fi
mount -t proc proc $root/proc
mount --rbind /sys $root/sys
mount -t tmpfs -o mode=755 tmpfs $root/dev
for name in null zero full random urandom tty; do
    touch $root/dev/$name
    mount --bind /dev/$name $root/dev/$name
done
mkdir -m 1777 $root/dev/shm
mkdir $root/dev/pts
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts $root/dev/pts
ln -s pts/ptmx $root/dev/ptmx
ln -s /proc/self/fd/0 $root/dev/stdin
ln -s /proc/self/fd/1 $root/dev/stdout
ln -s /proc/self/fd/2 $root/dev/stderr
ln -s /proc/self/fd $root/dev/fd
# An installed Debian has these files; mmdebstrap makes none.
cp --dereference /etc/resolv.conf $root/etc/resolv.conf
grep -q localhost $root/etc/hosts 2> /dev/null || echo "127.0.0.1 localhost\n::1 localhost" > $root/etc/hosts
grep -q ^visitor $root/etc/passwd || echo "visitor:x:1000:1000::/home/visitor:/bin/bash" >> $root/etc/passwd
exec chroot $root "$@"
"""


def main() -> int:
    """Run everything, and print times and results; return 1 if something fails."""
    parser = argparse.ArgumentParser(prog="make test-sources", description=__doc__)
    parser.add_argument("--debian", choices=SUITES, default="12", help="release of the root (default: 12)")
    parser.add_argument("--roots", type=int, default=1, help="how many roots run `make test` (default: 1)")
    parser.add_argument("--warm", type=int, default=1, help="how often each of them runs it again (default: 1)")
    parser.add_argument("--loops", type=int, default=0, help="endless loops beside `make test` (default: none)")
    parser.add_argument("--python", type=Path, help="directory of another Python (default: that of Debian)")
    args = parser.parse_args()
    if reason := missing_requirement():
        print(f"test-sources: {reason}", file=sys.stderr)
        return 1
    # On a disk: the build writes gigabytes.
    work = ROOT / f"target/clean-root-{os.getpid()}"
    work.mkdir(parents=True)
    try:
        visitor = Visitor(work, base_root(",".join(packages()), SUITES[args.debian]), args.python)
        results = [run_quickstart(visitor), timed(visitor, "make demo", "make demo")]
        with loops(args.loops):
            results += run_tests(visitor, args.roots, args.warm)
    finally:
        shutil.rmtree(work)
    print(f"\nDebian {args.debian}, {os.cpu_count()} CPUs, {args.loops} loops; packages: {' '.join(packages())}")
    for name, seconds, passed in results:
        print(f"{name:32} {seconds:7.0f} s  {'passed' if passed else 'FAILED'}")
    print(f"output: {LOGS.relative_to(ROOT)}")
    return 0 if all(passed for *_, passed in results) else 1


Result = tuple[str, float, bool]


class Visitor:
    """A user without permissions in the root, with a clone of the last commit."""

    def __init__(self, work: Path, base: Path, python: Path | None) -> None:
        self._work, self._base, self._python = work, base, python
        self._first = work / "0/upper"
        self.home = Path(f"{self._first}{HOME}")
        self.home.mkdir(parents=True)
        clone: list[str | Path] = ["git", "clone", "--quiet", "--no-hardlinks", ROOT, self.home / "dra-agent"]
        subprocess.run(clone, check=True)
        # Where this machine has an authority for downloads, a clean root does not trust it.
        shutil.copy(CERTIFICATES, self.home / "certificates.pem")
        subprocess.run(["chown", "--recursive", f"{VISITOR}:{VISITOR}", self.home], check=True)
        sysroot = subprocess.run(["rustc", "--print", "sysroot"], cwd=ROOT, capture_output=True, text=True, check=True)
        self._rust = sysroot.stdout.strip()

    def run(self, name: str, script: str, root: int = 0) -> tuple[float, int, str]:
        """Run a script of bash in the clone; return seconds, exit code and output, which is also in a file.

        What root 0 has, every other one sees until it changes it.
        """
        environment = {
            "HOME": HOME,
            "USER": "visitor",
            "PATH": f"{f'{self._python}/bin:' if self._python else ''}/opt/rust/bin:/usr/bin:/bin",
            "PIP_CERT": f"{HOME}/certificates.pem",
            "CARGO_HTTP_CAINFO": f"{HOME}/certificates.pem",
        }
        namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        lower = f"{self._first}:{self._base}" if root else self._base
        work = self._work / str(root)
        work.mkdir(exist_ok=True)
        chroot: list[str | Path] = ["sh", "-c", CHROOT, "sh", lower, work, self._rust, self._python or ""]
        user = ["setpriv", f"--reuid={VISITOR}", f"--regid={VISITOR}", "--clear-groups", "--no-new-privs"]
        variables = [f"{key}={value}" for key, value in environment.items()]
        shell = ["env", "-i", *variables, "bash", "-c", f"cd {CHECKOUT}\n{script}"]
        LOGS.mkdir(parents=True, exist_ok=True)
        log = LOGS / f"{name}.log"
        start = time.monotonic()
        with log.open("wb") as file:
            command = [*namespaces, *chroot, *user, *shell]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, check=False)
        seconds = time.monotonic() - start
        print(f"{name}: {seconds:.0f} s, exit code {done.returncode}", flush=True)
        return seconds, done.returncode, log.read_text(errors="replace")


def packages() -> list[str]:
    """Return the Debian packages that README.md names for the build."""
    found = re.search(r"`apt-get install ([a-z0-9 .+-]+)`", quickstart.README.read_text())
    assert found is not None, "README.md names no packages"
    return sorted(found[1].split())


def run_quickstart(visitor: Visitor) -> Result:
    """Paste the quickstart, and write its report."""
    pasted = quickstart.lines(HEADING)
    script = "\n".join(["set -e", *quickstart.timed(pasted, Path(HOME) / "times")])
    seconds, code, output = visitor.run("quickstart", script)
    passed = code == 0 and "resourceclaim/gpu-and-nic-one-switch created: prepared" in output
    if passed:
        heading = f"{HEADING}, from sources in a clean root"
        quickstart.record(heading, pasted, visitor.home / "times", left_out="the installation of Rust")
    return "quickstart, with make build", seconds, passed


def timed(visitor: Visitor, name: str, command: str, root: int = 0) -> Result:
    """Run one of the two commands that set up a checkout."""
    assert f"`{command}`" in quickstart.README.read_text(), f"README.md names {command}"
    seconds, code, _ = visitor.run(re.sub(r"[^a-z0-9]+", "-", name), command, root)
    return name, seconds, code == 0


def run_tests(visitor: Visitor, roots: int, warm: int) -> Iterator[Result]:
    """Run `make test` in each root, and there again `warm` times."""
    for root in range(1, roots + 1):
        for name in ("cold", *(f"warm {number}" for number in range(1, warm + 1))):
            yield timed(visitor, f"make test, root {root}, {name}", "make test", root)


@contextmanager
def loops(count: int) -> Iterator[None]:
    """Keep CPUs busy with as many processes."""
    running: Sequence[subprocess.Popen[bytes]] = [
        subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(count)
    ]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
