"""Hooks of mkdocs (mkdocs.yml): links that leave docs/, and a check that nothing is loaded from other hosts."""

from __future__ import annotations

import posixpath
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)(#[^)\s]*)?\)")
LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}
"""Elements whose resources a browser requests without a click."""


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Replace links to files of the repository outside docs/ by their text: the site does not have these files."""
    folder = posixpath.dirname(page.file.src_uri)

    def replace(link: re.Match[str]) -> str:
        outside = posixpath.normpath(posixpath.join(folder, link[2])).startswith("../")
        return link[1] if outside else link[0]

    return LINK.sub(replace, markdown)


def on_post_build(*, config: Any, **_: Any) -> None:
    """Raise ValueError if a page of the site loads a resource from another host."""
    foreign = [
        f"{page.name}: {address}"
        for page in sorted(Path(config["site_dir"]).rglob("*.html"))
        for address in resources(page.read_text())
        if "//" in address
    ]
    if foreign:
        raise ValueError(f"the site loads resources from other hosts: {foreign}")


def resources(html: str) -> list[str]:
    """Return the addresses that a page loads."""
    found: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            attributes = dict(attrs)
            if tag in LOADED and attributes.get("rel") != "canonical":
                found.append(attributes.get(LOADED[tag]) or "")

    Reader().feed(html)
    return found
