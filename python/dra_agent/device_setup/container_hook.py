"""The hook that container runtimes run for a device: a static program in a folder that the host knows by one path."""

from __future__ import annotations

from pathlib import Path

from dra_agent import atomic_file
from dra_agent.cdi.model import ContainerEdits, Hook
from dra_agent.errors import RetryableError

NAME = "dra-agent-hook"
BUILT = Path(__file__).parent / "lib" / NAME
"""Where `make build` puts it."""
TIMEOUT = 60
"""Seconds after which a runtime gives it up, and the container with it."""
SOCKET = "hooks.sock"
"""Where the agent answers it. The name is that of its first task, and in specs of running containers."""


LIMIT_TASK = "limit"
"""Task of a hook whose request names none: the first one that existed."""


class ContainerHook:
    """The hook's copy in a folder that the agent and the runtimes know by one path."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self.socket = folder / SOCKET
        self._installed = False

    def install(self) -> None:
        """Put it there, unless it is; RetryableError where that cannot be."""
        if self._installed and self.path.exists():
            return
        try:
            data = BUILT.read_bytes()
            if not self.path.exists() or self.path.read_bytes() != data:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                atomic_file.write(self.path, data, mode=0o755)
        except OSError as error:
            raise RetryableError(
                f"the hook cannot be put there: {error.strerror}",
                where=str(error.filename or self.path),
                hint="run `make build`, or see to the folder",
            ) from error
        self._installed = True

    def edits(self, *arguments: str) -> ContainerEdits:
        """Say what a runtime has to run before the container's process starts."""
        hook = Hook("createRuntime", str(self.path), (NAME, *arguments), timeout=TIMEOUT)
        return ContainerEdits(hooks=(hook,))

    def asks(self, uid: str, key: str, *arguments: str) -> ContainerEdits:
        """The same for a hook that asks the agent about a device, or a share, of a claim."""
        return self.edits("--socket", str(self.socket), "--claim", uid, "--key", key, *arguments)
