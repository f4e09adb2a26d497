"""Small conversions shared by every renderer: escaping, relative addresses, heading anchors."""

from __future__ import annotations

import html
import posixpath
import re
import unicodedata

# Signs that Markdown would read inside raw HTML; as entities they pass every generator untouched.
_MARKDOWN_SIGNS = re.compile(r"[\\`*_{}\[\]()#!|~^$\n:'\"<>=@/+-]")


def attribute(text: str) -> str:
    """``text`` for an HTML attribute inside Markdown: no sign left that either of the two would read."""
    return _MARKDOWN_SIGNS.sub(lambda m: f"&#{ord(m.group())};", text.replace("&", "&amp;"))


def content(text: str) -> str:
    """``text`` as HTML content inside Markdown."""
    return re.sub(r"[\\`*_{}\[\]|~^$]", lambda m: f"&#{ord(m.group())};", html.escape(text, quote=False))


def address(url: str) -> str:
    """An address for an ``href`` inside Markdown, in the signs that addresses may have."""
    return html.escape(re.sub(r"[\\`*\[\]{}|^<>() ]", lambda m: f"%{ord(m.group()):02X}", url))


def relative(target: str, page_url: str) -> str:
    """The address ``target`` (below the site's root, may end in ``#anchor``) as seen from ``page_url``."""
    path, sign, anchor = target.partition("#")
    start = page_url or "."
    # relpath drops the slash at the end, which the address of a page needs.
    relpath = posixpath.relpath(path or ".", start) + ("/" if path.endswith("/") or not path else "")
    return relpath + sign + anchor


def plain(markdown: str) -> str:
    """The text of inline Markdown without its signs: for headings, descriptions and alternative texts."""
    text = re.sub(r"!?\[([^\[\]]*)\]\([^()]*\)", r"\1", markdown)
    text = re.sub(r"\[([^\[\]]+)\]\{[=@~][^{}]*\}", r"\1", text)
    text = re.sub(r"`+([^`]+)`+", r"\1", text)
    text = re.sub(r"(\*\*|__)(.+?)\1", r"\2", text)
    return re.sub(r"(?<!\w)([*_])(.+?)\1(?!\w)", r"\2", text).strip()


def slug(heading: str) -> str:
    """The anchor that Python-Markdown gives a heading."""
    text = unicodedata.normalize("NFKD", plain(heading)).encode("ascii", "ignore").decode("ascii")
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text).strip().lower())


def slugs(headings: list[str]) -> list[str]:
    """The anchors of a page's headings in order; a repeated one gets ``_1``, ``_2`` as in Python-Markdown."""
    seen: set[str] = set()
    result = []
    for heading in headings:
        anchor = slug(heading)
        count = 1
        unique = anchor
        while unique in seen or not unique:
            unique = f"{anchor}_{count}"
            count += 1
        seen.add(unique)
        result.append(unique)
    return result
