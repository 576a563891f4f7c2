"""Compiles the binaries of the image from the locked crates, without maturin and a virtual environment."""

from __future__ import annotations

import subprocess
import sys

PROFILE = "dist"
COMMANDS = (
    ("build", "--lib", "--package", "dra-native", "--features", "extension-module"),
    ("build", "--package", "dra-nvml-fake"),
    # Static, because the hook runs on the host regardless of the libraries there.
    ("rustc", "--package", "dra-agent-hook", "--bin", "dra-agent-hook", "--", "-C", "target-feature=+crt-static"),
)


def main() -> int:
    """Run cargo; its outputs are in target/dist."""
    for command, *arguments in COMMANDS:
        done = subprocess.run(["cargo", command, "--locked", "--profile", PROFILE, *arguments], check=False)
        if done.returncode != 0:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
