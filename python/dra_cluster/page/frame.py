"""The document around each view: head, navigation, and how current the values are."""

from __future__ import annotations

from dra_cluster.page.html import Content, Html, element, text
from dra_cluster.page.last_known import LastRead

SLOW_S = 2.0
"""Seconds after which a reading that is not complete is mentioned."""


def document(title: str, *content: Content, active: str, has_cluster: bool) -> str:
    """Return a page; `active` is the path of its entry in the navigation."""
    entries = [("./", "Host"), ("cluster", "Cluster")] if has_cluster else [("./", "Host")]
    links = [
        element("li", element("a", label, href=path, aria_current="page" if path == active else None))
        for path, label in entries
    ]
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{title} - dra-agent"),
        element("link", rel="stylesheet", href="page.css"),
        element("script", src="page.js", defer=""),
    )
    body = element(
        "body",
        element("a", "Skip to content", class_="skip", href="#content"),
        element(
            "header",
            element("span", "dra-agent", class_="brand"),
            element("nav", element("ul", links), aria_label="Views") if has_cluster else None,
        ),
        element("main", element("h1", title), *content, id="content"),
        element("footer", element("p", "This page only shows. Commands of dra-agent change claims and devices.")),
    )
    return f'<!DOCTYPE html>\n<html lang="en">{head}{body}</html>\n'


def section(identity: str, heading: str, *content: Content, class_: str | None = None) -> Html:
    """Return a part of a view, which the script replaces when it changes."""
    return element(
        "section",
        element("h2", heading, id=f"{identity}-heading"),
        *content,
        id=identity,
        class_=class_,
        aria_labelledby=f"{identity}-heading",
        data_live="",
    )


def currency(known: LastRead[object]) -> Html:
    """Return how old the values are, and why there are no newer ones."""
    parts: list[Content] = []
    problem = False
    if known.age_s is not None:
        parts.append(f"Read {duration(known.age_s)} ago.")
    if known.error is not None:
        problem = True
        parts.append(f" ⚠ Not current: {known.error}." if parts else f"⚠ Nothing could be read: {known.error}.")
    elif known.reading_s is not None and (known.value is None or known.reading_s >= SLOW_S):
        problem = known.value is not None
        warning = " ⚠ " if problem else ""
        parts.append(f"{warning}The present reading takes {duration(known.reading_s)} so far. Load the page again.")
    return element("p", *parts, id="currency", class_="problem" if problem else "note", data_live="")


def duration(seconds: float) -> str:
    """Return a duration with its unit."""
    if seconds < 120:
        return f"{max(0.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def count(number: int, noun: str) -> str:
    """Return a number and its noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def names(items: tuple[str, ...], max_items: int) -> Content:
    """Return a list of names, of which at most `max_items` are shown; nothing for none."""
    if not items:
        return None
    entries = [element("li", Html(f"<bdi>{text(item)}</bdi>")) for item in items[:max_items]]
    if len(items) > max_items:
        entries.append(element("li", f"and {len(items) - max_items:,} more"))
    return element("ul", entries, class_="names")
