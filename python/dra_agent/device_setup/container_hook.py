"""The OCI hook that runtimes run for a device: a static program in a directory with the same path on the host."""

from __future__ import annotations

from pathlib import Path

from dra_agent import atomic_file
from dra_agent.cdi.model import ContainerEdits, Hook
from dra_agent.errors import RetryableError

NAME = "dra-agent-hook"
BUILT_BINARY = Path(__file__).parent / "lib" / NAME
"""The output of `make build`."""
TIMEOUT_S = 60
"""Seconds after which a runtime stops the hook, and does not start the container."""
SOCKET = "hooks.sock"
"""Socket on which the agent serves the hook. It has the name of the first task, and specs of running containers contain
it."""


LIMIT_TASK = "limit"
"""Task of hooks that name no task in their request: the first one that existed."""


class ContainerHook:
    """The copy of the hook in a directory that has the same path for the agent and for runtimes."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self.socket = folder / SOCKET
        self._installed = False

    def install(self) -> None:
        """Install it, unless it is installed; RetryableError if that fails."""
        if self._installed and self.path.exists():
            return
        try:
            data = BUILT_BINARY.read_bytes()
            if not self.path.exists() or self.path.read_bytes() != data:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                atomic_file.write(self.path, data, mode=0o755)
        except OSError as error:
            raise RetryableError(
                f"the hook cannot be installed: {error.strerror}",
                where=str(error.filename or self.path),
                hint="run `make build`, and check the folder",
            ) from error
        self._installed = True

    def edits(self, *arguments: str) -> ContainerEdits:
        """Return the hook that a runtime runs before it starts the container's process."""
        hook = Hook("createRuntime", str(self.path), (NAME, *arguments), timeout=TIMEOUT_S)
        return ContainerEdits(hooks=(hook,))

    def request_edits(self, uid: str, key: str, *arguments: str) -> ContainerEdits:
        """Return a hook that sends the agent a request for a device, or a share, of a claim."""
        return self.edits("--socket", str(self.socket), "--claim", uid, "--key", key, *arguments)
