"""The path of a plain request is short, and `minillm/README.md` lists it."""

from __future__ import annotations

import re

from traced_path import PACKAGE, plain_request

# A file or a line more than this needs a reason, which then stands here.
CORE_FILES, CORE_LINES = 14, 2_100  # directly in `minillm/core`
# A layer's mixer and its feed-forward are files of their own: an architecture adds to them, and changes no other.
FILES, LINES = 31, 4_900  # of the whole path
SWITCHES = 75  # calls of a decode step into another file than the call before it


def test_the_path_of_a_plain_request_stays_within_its_budget_and_is_what_the_readme_lists() -> None:
    path = plain_request()
    listed = re.findall(r"^\| `([\w/]+\.py)` \|", (PACKAGE / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(path.lines)
    core = {name: lines for name, lines in path.lines.items() if re.fullmatch(r"core/\w+\.py", name)}
    assert len(core) <= CORE_FILES
    assert sum(core.values()) <= CORE_LINES
    assert len(path.lines) <= FILES
    assert sum(path.lines.values()) <= LINES
    assert path.switches <= SWITCHES


def test_the_folders_that_the_readme_names_are_there() -> None:
    text = (PACKAGE / "README.md").read_text(encoding="utf-8").partition("## Beside the path")[2]
    cells = re.findall(r"^\| (`[^|]+) \|", text, re.MULTILINE)
    folders = [name for cell in cells for name in re.findall(r"`(\S+)`", cell)]
    assert len(folders) > 8
    assert all((PACKAGE / name / "__init__.py").is_file() for name in folders)
