"""Credentials that are replaced while the agent runs: bound tokens each hour, certificates before they expire.

Files are checked at most every 30 s, and at once when the server rejects them.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import re
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dra_agent import user_file
from dra_agent.command import inherited_environment
from dra_agent.errors import AgentError
from dra_agent.json_decode import decode_json
from dra_agent.kube_client.config import MAX_FILE_BYTES, ClientConfig, ExecCommand, Pem
from dra_agent.kube_client.connection import tls_context
from dra_agent.kube_client.errors import UnavailableError
from dra_agent.path_search import executable

TIMEOUT_S = 30.0
"""Seconds that the command may take."""
RENEW_BEFORE_S = 60.0
"""Seconds before they expire at which credentials are replaced."""


class ExecCredentials(msgspec.Struct, frozen=True):
    """The output of the command."""

    token: str | None
    certificate: Pem | None
    key: Pem | None
    expires: float | None
    """Unix time; None if they are valid until they are refused."""

    def is_valid(self) -> bool:
        """Whether they will not expire within a minute."""
        return self.expires is None or time.time() < self.expires - RENEW_BEFORE_S  # noqa: TID251 - credentials expire at a moment of the wall clock


class _Status(msgspec.Struct, rename="camel"):
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: datetime | None = None


class _Credential(msgspec.Struct):
    status: _Status


async def run_command(command: ExecCommand, config: ClientConfig) -> ExecCredentials:
    """Run the command of a configuration. Raises UnavailableError where it fails, hangs, or prints something else."""
    spec: dict[str, Any] = {"interactive": False}
    if command.provide_cluster_info:
        spec["cluster"] = _cluster(command, config)
    request = {"apiVersion": command.api_version, "kind": "ExecCredential", "spec": spec}
    added = {**dict(command.env), "KUBERNETES_EXEC_INFO": msgspec.json.encode(request).decode()}
    where = f"{config.source}: exec {command.command}"
    try:
        process = await asyncio.create_subprocess_exec(
            command.command,
            *command.args,
            executable=executable(command.command),
            env=inherited_environment(added),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise UnavailableError(f"the command for credentials cannot run: {error.strerror}", where=where) from error
    try:
        async with asyncio.timeout(TIMEOUT_S):
            out, complaint = await process.communicate()
    except TimeoutError as error:
        raise UnavailableError(f"the command returned no credentials in {TIMEOUT_S:.0f} s", where=where) from error
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode != 0:
        output = complaint.decode(errors="replace").strip()[-300:]
        raise UnavailableError(f"the command for credentials failed ({process.returncode}): {output}", where=where)
    try:
        status = decode_json(out, type=_Credential).status
    except msgspec.DecodeError as error:
        raise UnavailableError(f"the command printed no ExecCredential: {error}", where=where) from error
    expires = status.expiration_timestamp
    if expires is not None and expires.tzinfo is None:
        expires = expires.replace(tzinfo=UTC)
    return ExecCredentials(
        token=status.token,
        certificate=Pem(data=status.client_certificate_data.encode()) if status.client_certificate_data else None,
        key=Pem(data=status.client_key_data.encode()) if status.client_key_data else None,
        expires=expires.timestamp() if expires else None,
    )


def _cluster(command: ExecCommand, config: ClientConfig) -> dict[str, Any]:
    """Build ExecCredential.spec.cluster, with the field names of a kubeconfig."""
    cluster_info: dict[str, Any] = {"server": config.server, "config": command.cluster_config}
    if config.server_name:
        cluster_info["tls-server-name"] = config.server_name
    if config.insecure:
        cluster_info["insecure-skip-tls-verify"] = True
    if config.proxy_url:
        cluster_info["proxy-url"] = config.proxy_url
    if config.authority is not None:
        data = config.authority.data
        if data is None and config.authority.path is not None:
            try:
                data = user_file.read(config.authority.path, MAX_FILE_BYTES)
            except OSError as error:
                reason = f"the certificate of the cluster's authority cannot be read: {error.strerror}"
                raise UnavailableError(reason, where=str(config.authority.path)) from error
        cluster_info["certificate-authority-data"] = base64.b64encode(data or b"").decode()
    return cluster_info


log = logging.getLogger(__name__)

_TOKEN = re.compile(r"[!-~]+")
_Stamps = tuple[tuple[int, int, int] | None, ...]
CHECK_INTERVAL_S = 30.0
"""Seconds after which the files are checked again. Kubelets replace a token at 80 % of its lifetime of an hour."""


class Identity(NamedTuple):
    """The identity of one moment; immutable, so that any thread may use it."""

    version: int
    config: ClientConfig
    authorization: str | None
    """The value of the Authorization header."""
    context: ssl.SSLContext | None
    printed: ExecCredentials | None
    """What the command printed, if the configuration has one."""
    files: _Stamps
    """The files that it was read from."""


class Credentials:
    """The current identity of the agent. `version` grows when it changes: older connections are not reused."""

    def __init__(self, read: Callable[[], ClientConfig], *, clock: Callable[[], float] = time.monotonic) -> None:
        """`read` reloads the configuration. Raises its errors, and errors of the files."""
        self._read = read
        self._clock = clock
        self.version = 0
        self._printed: ExecCredentials | None = None
        self._running = asyncio.Lock()
        self._identity: Identity | None = None
        self._watchers: list[Callable[[], None]] = []
        self._load()

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever the identity has changed, on the thread of the event loop."""
        self._watchers.append(changed)

    def _load(self) -> None:
        self._checked_at = self._clock()
        config = self._read()
        files = _stamps(config)
        token = config.token
        if config.token_file is not None:
            try:
                token = user_file.read(config.token_file, MAX_FILE_BYTES).decode("ascii").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise UnavailableError(f"the token cannot be read: {error}", where=str(config.token_file)) from error
        _check(token, str(config.token_file or config.source))
        context = tls_context(config)
        self.config, self._files, self._token, self._context = config, files, token, context
        self._printed = None
        self._changed()

    async def current(self) -> tuple[str | None, ssl.SSLContext | None]:
        """Return the current Authorization header and TLS context."""
        if self._clock() - self._checked_at >= CHECK_INTERVAL_S:
            self._check_files()
        if self.config.command is not None:
            async with self._running:
                if self._printed is None or not self._printed.is_valid():
                    await self._run()
        return self._authorization(), self._context

    def ready(self) -> Identity | None:
        """Return the identity on any thread, without a wait; None if `current` has something to read first."""
        identity = self._identity
        if identity is None:
            return None
        now = self._clock()
        if now - self._checked_at >= CHECK_INTERVAL_S:
            # The first claim after a quiet time: files that are unchanged need no event loop.
            if _stamps(identity.config) != identity.files:
                return None
            self._checked_at = now
        if identity.config.command is not None and (identity.printed is None or not identity.printed.is_valid()):
            return None
        return identity

    async def invalidate(self, version: int) -> bool:
        """Check for newer credentials than those of `version`, which were rejected; return whether there are any."""
        if self.config.command is not None:
            async with self._running:
                if self.version == version:
                    await self._run()
            return True
        if self.version == version:
            self._check_files()
        return self.version != version

    def _check_files(self) -> None:
        self._checked_at = self._clock()
        if _stamps(self.config) == self._files:
            return
        try:
            self._load()
        except AgentError as error:
            log.warning("new credentials cannot be used, the old ones are kept", extra={"reason": str(error)})
            return
        log.info("credentials for the API server were replaced", extra={"source": self.config.source})

    async def _run(self) -> None:
        command = self.config.command
        if command is None:
            return
        printed = await run_command(command, self.config)
        _check(printed.token, f"{self.config.source}: exec {command.command}")
        self._printed = printed
        self._context = tls_context(self.config, self._printed.certificate, self._printed.key)
        self._changed()

    def _changed(self) -> None:
        self.version += 1
        self._identity = Identity(
            self.version, self.config, self._authorization(), self._context, self._printed, self._files
        )
        for changed in self._watchers:
            changed()

    def _authorization(self) -> str | None:
        token = self._printed.token if self._printed is not None else self._token
        if token:
            return f"Bearer {token}"
        if self.config.basic is not None:
            return "Basic " + base64.b64encode(":".join(self.config.basic).encode()).decode()
        return None


def _check(token: str | None, where: str) -> None:
    """Reject a token that a header cannot hold, without showing it: logs must not contain the token."""
    if token and not _TOKEN.fullmatch(token):
        raise UnavailableError("the token has characters that no token has", where=where)


def _stamps(config: ClientConfig) -> _Stamps:
    """A value that changes when one of the files is replaced."""
    files = [Path(config.source), config.token_file]
    files += [pem.path for pem in (config.authority, config.certificate, config.key) if pem is not None]
    return tuple(_stamp(path) for path in files if path is not None)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
