"""Credentials that are replaced while the agent runs: bound tokens each hour, certificates before they expire.

Files are looked at again at most each half minute, and at once when the server refuses.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import re
import ssl
import time
from collections.abc import Callable
from pathlib import Path

from dra_agent import user_file
from dra_agent.errors import AgentError
from dra_agent.kube_client.config import MAX_FILE_BYTES, ClientConfig
from dra_agent.kube_client.errors import UnavailableError
from dra_agent.kube_client.exec_credentials import ExecCredentials, run_command
from dra_agent.kube_client.tls import tls_context

log = logging.getLogger(__name__)

_TOKEN = re.compile(r"[!-~]+")
CHECK_INTERVAL_S = 30.0
"""Seconds after which the files are looked at again. Kubelets replace a token at 80 % of its life of an hour."""


class Credentials:
    """Who the agent is to the API server, now. `version` grows when that changes: older connections are not reused."""

    def __init__(self, read: Callable[[], ClientConfig], *, clock: Callable[[], float] = time.monotonic) -> None:
        """`read` gives the access anew. Raises what it raises, and what the files give cause for."""
        self._read = read
        self._clock = clock
        self.version = 0
        self._printed: ExecCredentials | None = None
        self._running = asyncio.Lock()
        self._load()

    def _load(self) -> None:
        self._looked = self._clock()
        access = self._read()
        state = _state(access)
        token = access.token
        if access.token_file is not None:
            try:
                token = user_file.read(access.token_file, MAX_FILE_BYTES).decode("ascii").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise UnavailableError(f"the token cannot be read: {error}", where=str(access.token_file)) from error
        _check(token, str(access.token_file or access.source))
        context = tls_context(access)
        self.access, self._state, self._token, self._context = access, state, token, context
        self.version += 1

    async def current(self) -> tuple[str | None, ssl.SSLContext | None]:
        """Give the Authorization header and the TLS context of this moment."""
        if self._clock() - self._looked >= CHECK_INTERVAL_S:
            self._look()
        if self.access.command is not None:
            async with self._running:
                if self._printed is None or not self._printed.is_valid():
                    await self._run()
        return self._authorization(), self._context

    async def invalidate(self, version: int) -> bool:
        """Look for newer credentials than those of `version`, which were refused; whether there are any."""
        if self.access.command is not None:
            async with self._running:
                if self.version == version:
                    await self._run()
            return True
        if self.version == version:
            self._look()
        return self.version != version

    def _look(self) -> None:
        self._looked = self._clock()
        if _state(self.access) == self._state:
            return
        try:
            self._load()
        except AgentError as error:
            log.warning("new credentials cannot be used, the old ones stay", extra={"reason": str(error)})
            return
        self._printed = None
        log.info("credentials for the API server were replaced", extra={"source": self.access.source})

    async def _run(self) -> None:
        command = self.access.command
        if command is None:
            return
        printed = await run_command(command, self.access)
        _check(printed.token, f"{self.access.source}: exec {command.command}")
        self._printed = printed
        self._context = tls_context(self.access, self._printed.certificate, self._printed.key)
        self.version += 1

    def _authorization(self) -> str | None:
        token = self._printed.token if self._printed is not None else self._token
        if token:
            return f"Bearer {token}"
        if self.access.basic is not None:
            return "Basic " + base64.b64encode(":".join(self.access.basic).encode()).decode()
        return None


def _check(token: str | None, where: str) -> None:
    """Refuse what no header can hold, without showing it: whoever reads logs is not to have the token."""
    if token and not _TOKEN.fullmatch(token):
        raise UnavailableError("the token has characters that no token has", where=where)


def _state(access: ClientConfig) -> tuple[object, ...]:
    """What changes when one of the files is replaced."""
    files = [Path(access.source), access.token_file]
    files += [pem.path for pem in (access.authority, access.certificate, access.key) if pem is not None]
    return tuple(_stamp(path) for path in files if path is not None)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
