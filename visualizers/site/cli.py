"""The command ``handbook``: build the site, serve it, check its pages."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from minillm.process import explain, prepare

try:
    from visualizers.site.errors import PageError, SiteError
    from visualizers.site.project import Project, find_root, load
except ModuleNotFoundError as missing:
    sys.exit(
        f"handbook: this Python has no {missing.name}: in a checkout, run make env once and then .venv/bin/handbook; "
        'elsewhere, pip install "inference-handbook[site]"'
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code: 1 where something is wrong with the project, 2 for bad usage."""
    try:
        prepare()
        options = command_line().parse_args(arguments)
        root = find_root(Path(options.root).resolve())
        return int(options.run(root, options))
    except PageError as error:
        for problem in error.problems:
            print(problem, file=sys.stderr)
        print(f"handbook: {_count(len(error.problems))}; nothing was written", file=sys.stderr)
        return 1
    except SiteError as error:
        print(f"handbook: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("handbook: interrupted; nothing half-written is left", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our findings had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        print(f"handbook: {explain(error)}", file=sys.stderr)
        return 1


def command_line() -> argparse.ArgumentParser:
    """All commands with their options."""
    parser = argparse.ArgumentParser(prog="handbook", description="Build, serve and check the inference handbook.")
    parser.add_argument("--root", default=".", help="a folder inside the project (default: the current one)")
    commands = parser.add_subparsers(dest="command", required=True)

    build = commands.add_parser("build", help="write the whole site into a folder")
    build.add_argument("--out", type=Path, default=Path("site"), help="the folder, replaced as a whole (default: site)")
    build.add_argument("--site-url", help="the address of the published site (default: site_url of mkdocs.yml)")
    build.add_argument("--generator", choices=("mkdocs", "zensical"), default="mkdocs", help="default: mkdocs")
    build.add_argument("--no-notebooks", action="store_true", help="leave out the notebooks that run in the browser")
    build.add_argument("--pyodide-index-url", help="where the browser's Python is fetched from at build")
    build.add_argument("--pypi-index-url", help="where its packages are fetched from at build")
    build.set_defaults(run=_build)

    serve = commands.add_parser("serve", help="build, serve with live notebooks, and rebuild what changes")
    serve.add_argument("--out", type=Path, default=None, help="where the site is built (default: .build/serve)")
    serve.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1)")
    serve.add_argument("--port", type=int, default=8000, help="default: 8000")
    serve.add_argument("--root-path", default="/", help="serve below this path (default: /)")
    serve.add_argument("--no-edit", action="store_true", help="leave out the editor of the notebooks' code")
    serve.set_defaults(run=_serve)

    mcp = commands.add_parser("mcp", help="answer programs on standard input and output: figures, pages, search")
    mcp.set_defaults(run=_mcp)

    check = commands.add_parser("check", help="find what is wrong with pages, numbers, sources, stems and llms.txt")
    check.add_argument("--fix", action="store_true", help="write llms.txt anew where it is stale")
    check.set_defaults(run=_check)
    return parser


def _build(root: Path, options: argparse.Namespace) -> int:
    from visualizers.site.build import Builder
    from visualizers.site.generators import get

    started = time.monotonic()
    builder = Builder.of(root, site_url=options.site_url, generator=get(options.generator))
    notebooks, told = _notebooks(root, options)
    content = builder.build(options.out.resolve(), notebooks=notebooks)
    pages = len(content.documents)
    print(f"site: {pages} pages in {options.out}, {time.monotonic() - started:.1f} s")
    if told:  # again, since whoever builds looks at the end
        print(told)
    return 0


def _notebooks(root: Path, options: argparse.Namespace) -> tuple[Path | None, str]:
    """Exports the notebooks for the browser, unless told not to; with why none will run there, if none will."""
    from visualizers.site import wasm
    from visualizers.site.config import Indexes
    from visualizers.site.files import locked

    folder = root / ".build" / "notebooks"
    if options.no_notebooks:
        return None, "notebooks: none will run in the browser: left out by --no-notebooks"
    given = {"pyodide": options.pyodide_index_url, "pypi": options.pypi_index_url}
    indexes = Indexes(**{name: url for name, url in given.items() if url})
    with locked(root / ".build" / "notebooks.lock", print):
        result = wasm.export(root, folder, indexes=indexes)
    if result.enabled:
        print(f"notebooks: {len(result.notebooks)} run in the browser, {result.bytes / 1e6:.0f} MB for a first visit")
        return folder, ""
    told = f"notebooks: none will run in the browser: {result.reason}"
    print(told)
    return folder, told


def _serve(root: Path, options: argparse.Namespace) -> int:
    from visualizers.site import serve

    return serve.run(root, options)


def _mcp(root: Path, _: argparse.Namespace) -> int:
    from visualizers.levels.computed import ComputedFigures
    from visualizers.site.agents import Book, server
    from visualizers.site.namespace import names

    figures = ComputedFigures(load(root, strict=False).repository)
    server(Book(root, figures, names(figures))).run("stdio")
    return 0


def _check(root: Path, options: argparse.Namespace) -> int:
    from visualizers.levels.computed import ComputedFigures
    from visualizers.site.check import check
    from visualizers.site.namespace import names

    project: Project = load(root, strict=False)
    figures = ComputedFigures(project.repository)
    problems = check(root, figures, names(figures), fix=options.fix)
    for problem in problems:
        print(problem)
    print(f"handbook: {_count(len(problems))} in {len(project.pages)} pages", file=sys.stderr)
    return 1 if problems else 0


def _count(n: int) -> str:
    return "no finding" if n == 0 else "1 finding" if n == 1 else f"{n} findings"


if __name__ == "__main__":
    sys.exit(main())
