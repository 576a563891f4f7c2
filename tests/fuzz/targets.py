"""The fuzz targets: their names, drivers and build."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DRIVERS = ROOT / "fuzz"
WORK = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "fuzz"
"""Build results and findings of a run. Not committed."""

# Edge coverage and traced comparisons, as cargo-fuzz asks of rustc. LLVM's pass is in the stable compiler; address
# sanitizing is not, and code without `unsafe` has no use for it.
COVERAGE = (
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
)


@dataclass(frozen=True)
class Target:
    """One kind of input."""

    name: str
    max_length: int
    """Maximum length of an input in bytes."""
    dictionary: str = ""

    def options(self) -> list[str]:
        """Return libFuzzer's options for this target."""
        options = [f"-max_len={self.max_length}"]
        if self.dictionary:
            options.append(f"-dict={DRIVERS / 'dictionaries' / self.dictionary}")
        return options


RUST = (
    Target("allocation", 8192),
    Target("cel", 512, "cel"),
    Target("device", 4096),
    Target("inventory", 8192),
    Target("ledger", 256),
    Target("object", 8192),
    Target("oci_state", 512, "oci_state"),
    Target("pattern", 128),
    Target("quantity", 64),
    Target("slice_diff", 8192),
    Target("sysfs", 1024),
    Target("uevent", 512),
)
PYTHON = (
    Target("config", 512, "config"),
    Target("grpc_bytes", 256),
    Target("grpc_message", 256),
    Target("request", 512, "request"),
)
TARGETS = {target.name: target for target in (*RUST, *PYTHON)}


def install_atheris() -> Path:
    """Install atheris, pinned, next to the working corpus; return the folder to import from."""
    folder, pins = WORK / "atheris", DRIVERS / "requirements.txt"
    stamp = folder / ".pins"
    if not stamp.exists() or stamp.read_text() != pins.read_text():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes"]
        subprocess.run([*command, "--no-deps", "--upgrade", "--target", str(folder), "-r", str(pins)], check=True)
        stamp.write_text(pins.read_text())
    return folder


def build_drivers() -> Path:
    """Build the drivers of the Rust targets with coverage; return their folder."""
    cargo = os.environ.get("CARGO", "cargo")
    version = subprocess.run(["rustc", "-vV"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    hosts: list[str] = re.findall(r"^host: (.+)$", version, re.MULTILINE)
    (host,) = hosts
    folder = WORK / "build"
    # With its own target, code that runs during the build (build scripts, macros) has no coverage.
    command = [cargo, "build", "--locked", "--quiet", "--release", "--target", host, "--target-dir", str(folder)]
    environment = {
        **os.environ,
        "RUSTFLAGS": " ".join(COVERAGE),
        "RUSTC_WRAPPER": str(DRIVERS / "rustc"),
        "COVERED_FOLDER": str(ROOT),
    }
    subprocess.run([*command, "--manifest-path", str(DRIVERS / "Cargo.toml")], env=environment, cwd=ROOT, check=True)
    return folder / host / "release"
