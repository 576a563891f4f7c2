"""The agent's part of the image's file system, collected without a build of the image."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from deploy.image import rootfs


def test_the_command_of_the_image_runs_the_copied_agent(tmp_path: Path) -> None:
    libraries, root, debug = tmp_path / "libraries", tmp_path / "root", tmp_path / "debug"
    (libraries / "msgspec").mkdir(parents=True)
    command = root / rootfs.COMMAND.relative_to("/")
    command.parent.mkdir(parents=True)
    rootfs.copy_agent(root, debug, libraries, Path("/usr/bin/python3"))
    interpreter, *program = command.read_text().splitlines()
    assert interpreter == "#!/usr/bin/python3 -I" and command.stat().st_mode & 0o777 == 0o755
    installed = root / rootfs.LIBRARY.relative_to("/")
    assert (installed / "msgspec").is_dir() and not (installed / "dra_simulate").exists()
    assert (debug / rootfs.LIBRARY.relative_to("/") / "dra_simulate/lib").is_dir()
    # The other libraries are those of this interpreter.
    text = "\n".join(program).replace(f"'{rootfs.LIBRARY}'", f"{str(installed)!r}")
    found = subprocess.run([sys.executable, "-c", text, "--version"], capture_output=True, text=True, check=True)
    assert found.stdout.startswith("dra-agent ")
