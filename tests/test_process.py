"""The commands in odd surroundings: closed streams, encodings without our letters, signals, a terminal."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time

import pytest

from minillm.process import utf8

COMMAND = (sys.executable, "-m", "minillm.cli")
SHORT = ("generate", "--prompt", "The", "--max-tokens", "2", "--temperature", "0")


def in_shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", line, sys.executable],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("module", "arguments", "closed", "code", "message"),
    [
        ("minillm.cli", "generate --prompt The --max-tokens 2", ">&-", 1, "standard output is closed"),
        ("minillm.cli", "models --json", ">&-", 1, "standard output is closed"),
        ("minillm.cli", "generate", "<&-", 2, "the prompt is empty"),
        ("minillm.cli", "generate --prompt The --max-tokens 2", "2>&-", 0, ""),
        ("minillm.cli", "generate --prompt The --temperature -1", "2>&-", 2, ""),
        ("minillm.cli", "chat --model tiny", "<&-", 0, ""),
        ("minillm.cli", "models", "> /dev/full", 1, "the output cannot be written (No space left on device)"),
        ("visualizers", "list", ">&-", 1, "standard output is closed"),
        ("visualizers", "kv-cache-size --context x", "2>&-", 2, ""),
        ("visualizers", "list --json", "> /dev/full", 1, "the output cannot be written (No space left on device)"),
        ("visualizers.site.cli", "--root / check", "2>&-", 1, ""),
        ("visualizers.site.cli", "check", ">&-", 1, "standard output is closed"),
    ],
)
def test_a_closed_or_full_stream_is_no_traceback(
    module: str, arguments: str, closed: str, code: int, message: str
) -> None:
    done = in_shell(f'"$0" -m {module} {arguments} {closed}')
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    if closed == "2>&-" and code:
        assert done.stdout == ""  # what is said to the reader's face does not go into the reader's file


@pytest.mark.parametrize("locale", [{"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}])
def test_text_that_a_stream_cannot_show_ends_nothing(locale: dict[str, str]) -> None:
    done = in_shell('"$0" -m minillm.cli generate --prompt "é世界" --max-tokens 2 --json', **locale)
    assert done.returncode == 0, done.stderr
    assert '"prompt": "\\u00e9\\u4e16\\u754c"' in done.stdout
    assert in_shell('"$0" -m minillm.cli generate --prompt "é世界" --max-tokens 2', **locale).returncode == 0
    figure = in_shell('"$0" -m visualizers kv-cache-size', **locale)
    assert figure.returncode == 0, figure.stderr


@pytest.mark.parametrize(
    "line",
    [
        r"printf 'a\xff\xfe' | '{0}' -m minillm.cli generate",
        r"'{0}' -m minillm.cli generate --prompt $'a\xff\xfe'",
        r"'{0}' -m minillm.cli generate --prompt a --stop $'a\xff\xfe'",
        r"printf 'a\xff\xfe\n' | '{0}' -m minillm.cli chat --model tiny",
        r"'{0}' -m minillm.cli chat --model tiny --system $'a\xff\xfe'",
    ],
)
@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_bytes_that_are_no_text_are_named(line: str, locale: str) -> None:
    done = in_shell(line.format(sys.executable), LC_ALL=locale)
    assert done.returncode == 2
    assert "not UTF-8 text: byte 1 is 0xff" in done.stderr
    assert "Traceback" not in done.stderr


def test_bytes_that_a_locale_could_not_read_are_text_all_the_same() -> None:
    assert utf8("é 世界", "x") == "é 世界"
    assert utf8(os.fsdecode("é".encode()), "x") == "é"
    assert utf8("\udcc3\udca9", "x") == "é"  # as Python hands over UTF-8 in a C locale
    with pytest.raises(ValueError, match="x is not UTF-8 text: byte 2 is 0xc3"):
        utf8("ab\udcc3", "x")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_a_run_without_a_traceback(number: signal.Signals, code: int) -> None:
    long = ("generate", "--prompt", "The", "--max-tokens", "100000", "--ignore-eos")
    process = subprocess.Popen([*COMMAND, *long], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.read(4)  # the prompt stands there: it generates
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in errors


class Terminal:
    """A command whose reader sits at a terminal."""

    def __init__(self, *arguments: str) -> None:
        self.pid, self._handle = pty.fork()
        if self.pid == 0:
            os.execv(COMMAND[0], [*COMMAND, *arguments])  # noqa: S606 - the command under test
        self.seen = ""

    def wait_for(self, text: str, count: int = 1, seconds: float = 90.0) -> None:
        end = time.monotonic() + seconds
        while self.seen.count(text) < count:
            assert time.monotonic() < end, f"no {count} x {text!r} in {self.seen!r}"
            if select.select([self._handle], [], [], 1.0)[0]:
                self.seen += os.read(self._handle, 4096).decode(errors="replace")

    def write(self, text: str) -> None:
        os.write(self._handle, text.encode())

    def ended(self) -> int:
        """The exit code."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self._handle)
        return code


def test_at_a_terminal_a_message_too_long_and_a_stopped_reply_leave_the_conversation() -> None:
    terminal = Terminal("chat", "--model", "tiny", "--temperature", "0", "--max-tokens", "900", "--ignore-eos")
    terminal.wait_for("> ")
    terminal.write("x7" * 1500 + "\n")  # a terminal takes 4,096 characters a line, the model 1,024 tokens
    terminal.wait_for("shorten it by")
    terminal.wait_for("> ", 2)
    terminal.write("Hello\n")
    before = len(terminal.seen)
    while len(terminal.seen) < before + 60:  # the line's echo, and some of the reply
        terminal.wait_for(" ", terminal.seen.count(" ") + 1)
    terminal.write("\x03")
    terminal.wait_for("the reply was stopped")
    terminal.wait_for("> ", 3)
    terminal.write("\x04")
    assert terminal.ended() == 0
    assert "Traceback" not in terminal.seen
