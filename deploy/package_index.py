"""Exit with 1, and print the URL, if the package index that pip would use cannot be reached. For `deploy/preflight.sh`.

A certificate that only pip trusts is not a missing network, and neither is an error that the server returns.
"""

from __future__ import annotations

import configparser
import http.client
import os
import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path

DEFAULT = "https://pypi.org/simple/"
TIMEOUT_S = 10.0


def index(environment: dict[str, str], files: list[Path]) -> str | None:
    """Return the URL of the index; None if pip uses none, or reaches it in a way that only pip knows."""
    settings: dict[str, str] = {}
    for file in files:
        # Not interpolated: `%` is a character of URLs.
        parser = configparser.RawConfigParser(strict=False)
        try:
            parser.read(file)
        except (OSError, UnicodeDecodeError, configparser.Error):
            continue
        for section in ("global", "install"):
            if parser.has_section(section):
                settings.update(parser.items(section))
    for name in ("index-url", "no-index", "proxy"):
        if value := environment.get("PIP_" + name.upper().replace("-", "_")):
            settings[name] = value
    if settings.get("proxy") or settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        return None
    return settings.get("index-url") or DEFAULT


def is_reachable(url: str, timeout_s: float = TIMEOUT_S) -> bool:
    """Return whether a server answers there."""
    try:
        request = urllib.request.Request(url, method="HEAD")  # noqa: S310 - the URL is the user's
        urllib.request.urlopen(request, timeout=timeout_s).close()  # noqa: S310
    except urllib.error.HTTPError as error:
        error.close()
    except urllib.error.URLError as error:
        return isinstance(error.reason, ssl.SSLError)
    except (ssl.SSLError, http.client.HTTPException):
        return True
    except (OSError, ValueError):
        return False
    return True


def config_files(environment: dict[str, str]) -> list[Path]:
    """Return the configuration files of pip on Linux; a later one overrides those before it."""
    home = Path(environment.get("HOME", "/"))
    named = environment.get("PIP_CONFIG_FILE")
    files = [Path("/etc/xdg/pip/pip.conf"), Path("/etc/pip.conf"), home / ".pip/pip.conf"]
    files.append(Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "pip/pip.conf")
    return [*files, *([Path(named)] if named else [])]


def main() -> int:
    """Check the index of this user."""
    environment = dict(os.environ)
    url = index(environment, config_files(environment))
    if url is None or is_reachable(url):
        return 0
    print(url)
    return 1


if __name__ == "__main__":
    sys.exit(main())
