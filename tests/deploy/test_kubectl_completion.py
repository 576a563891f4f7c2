"""The program that the page about the command line creates lets kubectl complete words of its plugin."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 300


def test_kubectl_completes_with_the_documented_program(kubectl: Path, tmp_path: Path) -> None:
    page = (ROOT / "docs/how-to/operate/command-line.md").read_text()
    (commands,) = (block for block in re.findall(r"^```sh\n(.*?)^```", page, re.M | re.S) if "__complete" in block)
    programs = tmp_path / ".local/bin"
    programs.mkdir(parents=True)
    path = os.pathsep.join((str(programs), str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {**os.environ, "HOME": str(tmp_path), "KUBECONFIG": str(tmp_path / "none"), "PATH": path}
    subprocess.run(["sh", "-c", commands], env=environment, check=True)
    words: list[str | Path] = [kubectl, "__complete", "dra", "top", "--so"]
    result = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    candidate, directive = result.stdout.splitlines()
    assert candidate.startswith("--sort\t") and directive == ":4", result.stderr
