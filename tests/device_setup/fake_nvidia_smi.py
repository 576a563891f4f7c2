"""An nvidia-smi of a few lines: it keeps what is set in files, notes its calls, and fails where a test wants it."""

from __future__ import annotations

from pathlib import Path

_SCRIPT = """#!/bin/sh
D=$(dirname "$0")
echo "$@" >> "$D/calls"
N=0
while [ $N -lt 6000 ] && { [ -e "$D/hang-$2" ] || [ -e "$D/hang-$3" ]; }; do sleep 0.05; N=$((N + 1)); done
if [ -e "$D/fails" ] && echo "$@" | grep -q -e "$(cat "$D/fails")"; then
  cat "$D/stderr" >&2; exit "$(cat "$D/status")"
fi
case "$*" in
  *--query-gpu=compute_mode*) cat "$D/mode-$2" 2>/dev/null || echo Default ;;
  compute-policy*) echo "$5" > "$D/slice-$3" ;;
  *" -c "*) echo "$4" > "$D/mode-$2" ;;
  *) echo "unknown arguments" >&2; exit 2 ;;
esac
"""


class Smi:
    """The tool in a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.path = folder / "nvidia-smi"
        self.path.write_text(_SCRIPT)
        self.path.chmod(0o755)

    def slice(self, uuid: str) -> str | None:
        """The interval's number; None where none was ever set."""
        return self._kept(f"slice-{uuid}")

    def mode(self, uuid: str) -> str:
        return (self._kept(f"mode-{uuid}") or "DEFAULT").upper()

    def set_mode(self, uuid: str, mode: str) -> None:
        (self.folder / f"mode-{uuid}").write_text(f"{mode}\n")

    def calls(self) -> list[str]:
        return (self._kept("calls") or "").splitlines()

    def fail(self, pattern: str | None, status: int = 255, message: str = "it went wrong") -> None:
        """Let calls whose arguments match fail; None: none any more."""
        if pattern is None:
            (self.folder / "fails").unlink()
            return
        (self.folder / "fails").write_text(pattern)
        (self.folder / "status").write_text(str(status))
        (self.folder / "stderr").write_text(f"Unable to do it\n{message}\n")

    def hang(self, uuid: str) -> None:
        """Let calls for a GPU hang, until `answer_again`."""
        (self.folder / f"hang-{uuid}").touch()

    def answer_again(self, uuid: str) -> None:
        (self.folder / f"hang-{uuid}").unlink()

    def _kept(self, name: str) -> str | None:
        try:
            return (self.folder / name).read_text().strip()
        except FileNotFoundError:
            return None
