"""Small files by which programs find what there is: ``robots.txt``, the site map's dates, the feed, an answer to lost
readers in Markdown, headers for hosts that take them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

from visualizers.site.postprocess import Facts
from visualizers.site.project import Page, Project

FEED = "feed.xml"
_ENTRY = re.compile(r"<loc>(?P<address>[^<]*)</loc>\s*<lastmod>[^<]*</lastmod>")


def robots(project: Project) -> str:
    """Everybody may read everything."""
    return f"User-agent: *\nAllow: /\n\nSitemap: {project.site_url}sitemap.xml\n"


def sitemap(text: str, project: Project, facts: Iterable[Facts]) -> str:
    """The generator's site map with the dates of the pages instead of that of the build."""
    dates = {escape(project.site_url + f.url): f.updated or f.changed for f in facts}
    newest = max(filter(None, dates.values()), default="")

    def dated(match: re.Match[str]) -> str:
        date = dates.get(match["address"]) or newest
        return f"<loc>{match['address']}</loc>\n         <lastmod>{date}</lastmod>" if date else match.group()

    return _ENTRY.sub(dated, text)


def feed(project: Project) -> str:
    """The pages as an Atom feed, the last changed first."""
    pages = sorted(project.pages, key=lambda page: page.meta.updated, reverse=True)
    newest = pages[0].meta.updated if pages else ""
    entries = "".join(_entry(page, project.site_url + page.url) for page in pages)
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n<feed xmlns="http://www.w3.org/2005/Atom">\n'
        f'  <title>{escape(project.name)}</title>\n  <link href="{escape(project.site_url)}"/>\n'
        f'  <link rel="self" href="{escape(project.site_url)}{FEED}"/>\n  <id>{escape(project.site_url)}</id>\n'
        f"  <author><name>{escape(project.name)}</name></author>\n"
        f"  <updated>{newest}T00:00:00Z</updated>\n{entries}</feed>\n"
    )


def _entry(page: Page, address: str) -> str:
    changed, link = page.meta.updated, escape(address)
    return (
        f'  <entry>\n    <title>{escape(page.label)}</title>\n    <link href="{link}"/>\n'
        f"    <id>{link}#{changed}</id>\n"
        f"    <updated>{changed}T00:00:00Z</updated>\n    <summary>{escape(page.meta.description)}</summary>\n"
        "  </entry>\n"
    )


def not_found(project: Project) -> str:
    """What a program reads that asked for Markdown at an address that leads nowhere."""
    return (
        "# There is no such page\n\nThe address is misspelt, or the page has moved. All pages, one line each: "
        f"<{project.site_url}llms.txt>.\n"
    )


def headers() -> str:
    """``_headers``, for hosts that read it: what is published may be read by pages of any site."""
    return "/*\n  Access-Control-Allow-Origin: *\n"
