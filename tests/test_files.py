"""Writing where a user said: whole or not at all, and nothing is removed that was not made by the writing."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from minillm.files import write_whole


def test_a_file_is_replaced_with_its_permissions_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text("before")
    path.chmod(0o640)
    write_whole(path, "after é")
    assert path.read_text(encoding="utf-8") == "after é"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_may_not_be_written_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    path.write_text("before")
    monkeypatch.setattr(os, "access", lambda *_: False)  # whoever runs this may be root
    with pytest.raises(PermissionError, match=r"run\.json"):
        write_whole(path, "after")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_what_breaks_off_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    path.write_text("before")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, "after")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "\ud800")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_a_link_and_its_file_is_written(tmp_path: Path) -> None:
    path, target = tmp_path / "link.json", tmp_path / "there.json"
    path.symlink_to(target)
    write_whole(path, "text")
    assert path.is_symlink()
    assert target.read_text() == "text"


@pytest.mark.parametrize("device", ["/dev/null", "/dev/full"])
def test_a_device_is_written_to_and_stays(device: str) -> None:
    if device == "/dev/full":
        with pytest.raises(OSError, match="No space"):
            write_whole(Path(device), "text")
    else:
        write_whole(Path(device), "text")
    assert stat.S_ISCHR(os.stat(device).st_mode)


def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe, heard = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: heard.append(pipe.read_text()), daemon=True)
    reader.start()
    write_whole(pipe, "text")
    reader.join(10)
    assert heard == ["text"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_the_engines_trace_goes_through_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from minillm.backends.hash_model import HashModel
    from minillm.cli_engine import write_trace
    from minillm.core.config import EngineConfig
    from minillm.core.engine import Engine

    path = tmp_path / "run.json"
    path.write_text("before")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(PermissionError):
        write_trace(Engine(HashModel(), EngineConfig(num_blocks=9)), path)
    assert path.read_text() == "before"
