"""Certificates created with openssl, with any lifetime."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Authority:
    """A certificate authority in its own directory, or with an existing certificate and key."""

    def __init__(self, directory: Path, certificate: Path | None = None, key: Path | None = None) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("openssl is not installed")
        self._directory = directory
        directory.mkdir(parents=True)
        (directory / "serial").write_text("01\n")
        self.certificate = certificate or directory / "ca.crt"
        self._key = key or directory / "ca.key"
        if key is not None:
            return
        usage = ("-addext", "keyUsage=critical,keyCertSign,digitalSignature")
        made = ("-keyout", str(self._key), "-out", str(self.certificate))
        self._openssl("req", "-x509", *_KEY, "-subj", "/CN=test authority", "-days", "2", *made, *usage)

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=self._directory)

    def issue(self, name: str, *, valid: timedelta = timedelta(days=1), organization: str = "") -> tuple[Path, Path]:
        """Issue a certificate (and its key) for `name`; `valid` counts from now and may be negative."""
        where = self._directory
        key, request, certificate = (where / f"{name}.{suffix}" for suffix in ("key", "csr", "crt"))
        now = datetime.now(UTC)
        config = where / "ca.cnf"
        config.write_text(
            f"[ca]\ndefault_ca=d\n[d]\ndatabase={where}/index\nserial={where}/serial\nnew_certs_dir={where}\n"
            f"certificate={self.certificate}\nprivate_key={self._key}\ndefault_md=sha256\npolicy=p\nunique_subject=no\n"
            f"x509_extensions=e\n[p]\ncommonName=supplied\norganizationName=optional\n[e]\nsubjectAltName=IP:127.0.0.1\n"
        )
        (where / "index").touch()
        subject = f"/O={organization}/CN={name}" if organization else f"/CN={name}"
        self._openssl("req", *_KEY, "-subj", subject, "-keyout", str(key), "-out", str(request))
        start, end = ((now + after).strftime("%Y%m%d%H%M%SZ") for after in (timedelta(days=-2), valid))
        batch = ("ca", "-batch", "-notext", "-config", str(config), "-in", str(request), "-out", str(certificate))
        self._openssl(*batch, "-startdate", start, "-enddate", end)
        return certificate, key

    def server_context(self, name: str = "server", *, valid: timedelta = timedelta(days=1)) -> ssl.SSLContext:
        """Return a server context that requests client certificates of this authority."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.issue(name, valid=valid))
        context.load_verify_locations(self.certificate)
        context.verify_mode = ssl.CERT_OPTIONAL
        return context
