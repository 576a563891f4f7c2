"""Certificates for a server, made by openssl and replaced as the kubelet replaces files of a Secret volume."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest


class Secret:
    """A directory with tls.crt and tls.key: links into a directory that is replaced as a whole."""

    def __init__(self, folder: Path, *names: str) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("openssl is not installed")
        folder.mkdir()
        self.folder = folder
        self._names = names or ("IP:127.0.0.1", "DNS:localhost")
        self._generation = 0
        self.renew()
        for name in ("tls.crt", "tls.key"):
            (folder / name).symlink_to(f"..data/{name}")

    @property
    def certificate(self) -> Path:
        return self.folder / "tls.crt"

    @property
    def key(self) -> Path:
        return self.folder / "tls.key"

    def renew(self, certificate: bytes | None = None) -> None:
        """Replace the pair atomically; `certificate` is one that does not match its key."""
        self._generation += 1
        generation = self.folder / f"..{self._generation}"
        generation.mkdir()
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        command += ["-subj", "/CN=server", "-addext", f"subjectAltName={','.join(self._names)}", "-days", "2"]
        command += ["-keyout", str(generation / "tls.key"), "-out", str(generation / "tls.crt")]
        subprocess.run(command, check=True, capture_output=True)
        if certificate is not None:
            (generation / "tls.crt").write_bytes(certificate)
        link = self.folder / "..data_tmp"
        link.symlink_to(generation.name)
        link.rename(self.folder / "..data")

    def trusted(self) -> ssl.SSLContext:
        """Return a client context that trusts the present certificate only."""
        return ssl.create_default_context(cafile=str(self.certificate))
