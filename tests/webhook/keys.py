"""Certificates for a webhook, made by openssl and replaced as a Secret's volume replaces its files."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest


class Secret:
    """A folder with tls.crt and tls.key, links into a folder that is exchanged as a whole."""

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
        """Put a new pair in place, at once; `certificate`: one that is no match for its key."""
        self._generation += 1
        made = self.folder / f"..{self._generation}"
        made.mkdir()
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        command += ["-subj", "/CN=webhook", "-addext", f"subjectAltName={','.join(self._names)}", "-days", "2"]
        command += ["-keyout", str(made / "tls.key"), "-out", str(made / "tls.crt")]
        subprocess.run(command, check=True, capture_output=True)
        if certificate is not None:
            (made / "tls.crt").write_bytes(certificate)
        link = self.folder / "..data_tmp"
        link.symlink_to(made.name)
        link.rename(self.folder / "..data")

    def trusted(self) -> ssl.SSLContext:
        """A client's context that trusts the present certificate and no other."""
        return ssl.create_default_context(cafile=str(self.certificate))
