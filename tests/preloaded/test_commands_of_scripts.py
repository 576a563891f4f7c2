"""`dra-agent` in a script is a fork of the preloaded process, and ends like the command that it replaces."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from eventually import DEADLINE_S

TESTS = Path(__file__).resolve().parents[1]
SCRIPT = """
import socket, subprocess, sys
import preloaded
from urllib.parse import urlsplit

command = [preloaded.program_folder() / "dra-agent", "ui", "--port", "0"]
program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
port = urlsplit(program.stdout.readline()).port
preloaded.close()
program.terminate()
print(program.wait())
with socket.socket() as client:
    print(client.connect_ex(("127.0.0.1", port)) == 0)
"""


def test_a_signal_ends_a_command_whose_preloaded_process_has_ended() -> None:
    script = f"import sys; sys.path.insert(0, {str(TESTS)!r})\n{SCRIPT}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.stdout.split() == ["1", "False"], done.stderr
