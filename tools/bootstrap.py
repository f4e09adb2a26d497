"""Make ``.venv`` from the pinned versions, again only when they changed; standard library only.

    python3 tools/bootstrap.py             # everything but a browser
    python3 tools/bootstrap.py --browser   # and a Chromium for the tests

An interrupted run leaves no stamp, so the next one starts where pip can go on.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / ".ready"
LOG = ROOT / ".cache" / "install.log"
PYTHON = VENV / "bin" / "python"
OLDEST = (3, 11)


class SetupError(Exception):
    """What is missing, and the one line that brings it."""


def digest() -> str:
    """Changes whenever another environment would be installed."""
    parts = [(ROOT / name).read_bytes() for name in ("pyproject.toml", "constraints.txt")]
    return hashlib.sha256(b"\0".join([*parts, sys.version.encode()])).hexdigest()


def is_of_here() -> bool:
    """Commands in an environment name the place where it was made: moved or copied, it runs code of that place."""
    pip = VENV / "bin" / "pip"
    return not pip.exists() or str(VENV.resolve()).encode() in pip.read_bytes()


def make_venv() -> None:
    if PYTHON.exists():
        works = subprocess.run([PYTHON, "-m", "pip", "--version"], capture_output=True, check=False)
        if works.returncode == 0 and is_of_here():
            return
        reason = "was made for another folder" if works.returncode == 0 else "is half made"
        print(f"  .venv {reason}: starting it anew", flush=True)
        shutil.rmtree(VENV)
    made = subprocess.run([sys.executable, "-m", "venv", VENV], capture_output=True, text=True, check=False)
    if made.returncode:
        shutil.rmtree(VENV, ignore_errors=True)
        raise SetupError(
            f"python could not make {VENV}: {(made.stdout + made.stderr).strip()[-400:]}\n"
            "On Debian or Ubuntu: apt-get install python3-venv"
        )


def install() -> None:
    """Run pip, tell each large download, and keep the whole output in a log."""
    LOG.parent.mkdir(exist_ok=True)
    command = [str(PYTHON), "-m", "pip", "install", "--progress-bar", "off", "--disable-pip-version-check",
               "-c", str(ROOT / "constraints.txt"), "-e", f"{ROOT}[torch,site,test]"]  # fmt: skip
    with LOG.open("w") as log:
        pip = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if pip.stdout is None:
            raise SetupError("pip gave no output")
        for line in pip.stdout:
            log.write(line)
            text = line.strip()
            if text.startswith("Downloading") and " MB)" in text:
                print(f"  {text}", flush=True)
            elif text.startswith("Installing collected packages"):
                count = text.count(",") + 1
                print(f"  unpacking {count} packages (a minute or two)", flush=True)
        if pip.wait():
            tail = "".join(LOG.read_text().splitlines(keepends=True)[-12:])
            raise SetupError(
                f"pip failed; the last lines of {LOG.relative_to(ROOT)}:\n{tail}\n"
                "No network, or a full disk? Mend that, then run the same command again."
            )


def run(browser: bool) -> None:
    if sys.version_info < OLDEST:
        raise SetupError(
            f"Python {sys.version.split()[0]} is too old, {'.'.join(map(str, OLDEST))} or newer is needed: "
            "install it and name it, for example: make serve PYTHON=python3.12"
        )
    if not (STAMP.exists() and STAMP.read_text() == digest() and is_of_here()):
        print("Setting up .venv (first time: a few minutes, about 3 GB with PyTorch)", flush=True)
        STAMP.unlink(missing_ok=True)
        make_venv()
        install()
        STAMP.write_text(digest())
        print("Environment ready", flush=True)
    if browser:
        found = subprocess.run([PYTHON, "-m", "visualizers.site.browser", "--install"], cwd=ROOT, check=False)
        if found.returncode:
            raise SetupError("The tests need a Chromium, see above")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--browser", action="store_true", help="also bring a Chromium for the tests")
    arguments = parser.parse_args()
    try:
        run(arguments.browser)
    except SetupError as error:
        sys.exit(f"{error}")
    except KeyboardInterrupt:
        sys.exit("\nStopped; the same command goes on from here.")
    except OSError as error:
        sys.exit(f"{error}: mend that and run the same command again")


if __name__ == "__main__":
    os.chdir(ROOT)
    main()
