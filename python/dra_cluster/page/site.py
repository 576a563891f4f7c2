"""The paths of the page: a fixed table. A path that is not in it has no response, so none becomes a file name."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dra_cluster.page import cluster, host
from dra_cluster.page.frame import document
from dra_cluster.page.html import Content
from dra_cluster.page.last_known import LastKnown
from dra_cluster.page.views import ClusterView, HostView

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PICTURE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'; sandbox"
"""The picture has its style within it, and no script may run."""
_PAGE = re.compile(r"page=([0-9]{1,6})")
_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Page:
    """One response."""

    body: bytes
    kind: str
    policy: str = POLICY


class Site:
    """Renders a path of the table."""

    def __init__(self, host_view: LastKnown[HostView], cluster_view: LastKnown[ClusterView] | None) -> None:
        """Without `cluster_view` there is no page of the cluster."""
        self._host = host_view
        self._cluster = cluster_view
        style, script = (_FOLDER / "page.css").read_bytes(), (_FOLDER / "page.js").read_bytes()
        self._paths: dict[str, Callable[[str], Page | None]] = {
            "": self._host_page,
            "topology.svg": self._picture,
            "page.css": lambda query: Page(style, "text/css; charset=utf-8"),
            "page.js": lambda query: Page(script, "text/javascript; charset=utf-8"),
        }
        if cluster_view is not None:
            self._paths["cluster"] = self._cluster_page

    def page(self, path: str, query: str) -> Page | None:
        """Return the response for a path; None if there is none."""
        render = self._paths.get(path)
        return None if render is None else render(query)

    def _host_page(self, query: str) -> Page:
        known = self._host.get()
        return self._document(host.title(known), host.content(known), "./")

    def _cluster_page(self, query: str) -> Page:
        assert self._cluster is not None
        found = _PAGE.fullmatch(query)
        content = cluster.content(self._cluster.get(), int(found[1]) if found else 1)
        return self._document(cluster.TITLE, content, "cluster")

    def _picture(self, query: str) -> Page | None:
        view = self._host.get().value
        return None if view is None else Page(view.picture.encode(), "image/svg+xml", PICTURE_POLICY)

    def _document(self, title: str, content: list[Content], active: str) -> Page:
        text = document(title, *content, active=active, has_cluster=self._cluster is not None)
        return Page(text.encode(), "text/html; charset=utf-8")
