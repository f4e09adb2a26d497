"""The files by which an agent finds its way: ``llms.txt``, ``llms-full.txt``, one bundle for each part."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from visualizers.site import twins
from visualizers.site.generated import Generated
from visualizers.site.project import HOME, Project

# A figure in a twin, from its heading to its link, as `visualizers.levels.markdown` writes it.
_FIGURE = re.compile(
    r"^(?P<title>### Figure: .*\n)(?P<body>(?:(?!^#{1,3} ).*\n)*?)(?P<link>\[The figure, with this state\])",
    re.MULTILINE,
)
METHOD = "UTF-8 bytes divided by 4"


def estimated_tokens(text: str) -> int:
    """How many tokens a model will count, roughly: see ``METHOD``. Tokenizers differ by more than the error."""
    return -(-len(text.encode("utf-8")) // 4)


def index(project: Project, generated: Iterable[Generated], documents: Mapping[str, str] | None = None) -> str:
    """``llms.txt``: every page in the order of the navigation, one line each with its description and date.

    With ``documents``, from a page's path to its twin, each line says the size too; it varies from build to build
    with the figures that are measured, so that the copy in the repository goes without.
    """
    root = project.site_url
    home = project.by_path.get(HOME)
    lines = [
        f"# {project.name}",
        "",
        f"> {home.meta.description if home else project.config['site_description']}",
        "",
        "Every page `x/` is also served as Markdown at `x.md`, `x/index.md` and `x/index.html.md`, and where the host"
        " can, at `x/` itself for `Accept: text/markdown`. Figures are given there as values and tables, with the"
        " command that recomputes them; every number names its formula or its source.",
    ]
    if home:
        about = _facts(HOME, str(home.meta.updated), documents)
        lines += ["", f"- [{home.meta.title}]({root}index.md): {home.meta.description}{about}"]
    extra = {page.path: page for page in generated}
    for part in project.parts:
        if not part.title:
            continue
        lines += ["", f"## {part.title}", ""]
        for path in part.paths:
            if path in project.by_path:
                page = project.by_path[path]
                title, url, description = page.label, page.url, page.meta.description
                about = _facts(path, str(page.meta.updated), documents)
            else:
                title, url, description = extra[path].title, extra[path].url, extra[path].description
                about = _facts(path, "", documents)
            lines.append(f"- [{title}]({root}{twins.main_address(url)}): {description}{about}")
    lines += ["", "## Optional", "", f"- [The whole book]({root}llms-full.txt): all pages in one file."]
    for title, name in bundle_names(project).items():
        lines.append(f"- [{title}]({root}{name}): the pages of this part in one file.")
    lines += [
        f"- [Search index]({root}search/search_index.json): every section, figure, term and source with its address.",
        f"- [Changed pages]({root}feed.xml): an Atom feed, the last changed first.",
    ]
    return "\n".join(lines) + "\n"


def _facts(path: str, updated: str, documents: Mapping[str, str] | None) -> str:
    """What an agent must know before it reads: `` (about 4,200 tokens, 2026-11-29)``."""
    size = f"about {int(float(f'{estimated_tokens(documents[path]):.2g}')):,} tokens" if documents else ""
    told = ", ".join(filter(None, [size, updated]))
    return f" ({told})" if told else ""


def bundle_names(project: Project) -> Mapping[str, str]:
    """For each part with pages, where its bundle lies below the site's root."""
    return {
        part.title: f"bundles/{re.sub(r'[^a-z0-9]+', '-', part.title.lower()).strip('-')}.md"
        for part in project.parts
        if part.title and any(path in project.by_path for path in part.paths)
    }


def bundles(project: Project, documents: Mapping[str, str]) -> dict[str, str]:
    """All files by their path below the site's root. ``documents`` maps a page's path to its twin."""
    files = {}
    for part in project.parts:
        name = bundle_names(project).get(part.title)
        if name:
            chosen = [documents[path] for path in part.paths if path in documents]
            files[name] = _bundle(project, part.title, chosen)
    ordered = [documents[path] for part in project.parts for path in part.paths if path in documents]
    files["llms-full.txt"] = _bundle(project, project.name, ordered)
    return files


def _bundle(project: Project, title: str, documents: list[str]) -> str:
    """The documents one after the other, below a head that says how large they are."""
    body = _figures_once(twins.texts(documents))
    fields: dict[str, object] = {
        "title": title,
        "book": project.name,
        "pages": len(documents),
        "tokens": estimated_tokens(body),
        "tokens_method": METHOD,
        "licence": twins.LICENCE,
    }
    return twins.front_matter(fields) + body


def _figures_once(text: str) -> str:
    """``text`` in which a figure that stands twice in one state is written out once; its link stays."""
    seen: set[tuple[str, str]] = set()

    def once(match: re.Match[str]) -> str:
        key = match["title"], match["body"]
        if key not in seen:
            seen.add(key)
            return match.group()
        return f"{match['title']}\nWritten out above, in the same state.\n\n{match['link']}"

    return _FIGURE.sub(once, text)
