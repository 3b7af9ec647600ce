"""Files are replaced atomically. Links, devices and pipes are not replaced."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from gridcoll.errors import FileError
from gridcoll.files import check_writable, read_text, write_atomically
from gridcoll.model.storage import read_model


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_a_file_is_made_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in ("first", b"second"):
        check_writable(path)
        write_atomically(path, content)
    assert path.read_bytes() == b"second"
    assert names(tmp_path) == {"file"}


def test_a_symbolic_link_stays_one_and_its_target_is_replaced(tmp_path: Path) -> None:
    """The new file is made in the target's directory. A reader of the old file keeps it."""
    target, link = tmp_path / "there" / "target", tmp_path / "here" / "link"
    for path in (target, link):
        path.parent.mkdir()
    target.write_text("old")
    link.symlink_to(Path("..", "there", "target"))
    check_writable(link)
    with target.open() as old:
        write_atomically(link, "new")
        assert old.read() == "old"
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert (names(target.parent), names(link.parent)) == ({"target"}, {"link"})


def test_a_dangling_link_makes_its_target(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("target")
    check_writable(link)
    write_atomically(link, "new")
    assert link.is_symlink()
    assert (tmp_path / "target").read_text() == "new"


def test_a_link_into_nowhere_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(Path("none", "target"))
    with pytest.raises(FileError, match="cannot write"):
        check_writable(link)
    with pytest.raises(FileError, match="cannot write"):
        write_atomically(link, "new")
    assert names(tmp_path) == {"link"}


@pytest.mark.parametrize("linked", [False, True], ids=["pipe", "link to a pipe"])
def test_a_pipe_gets_the_content(tmp_path: Path, linked: bool) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    path = tmp_path / "link" if linked else pipe
    if linked:
        path.symlink_to(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    check_writable(path)
    write_atomically(path, "content")
    assert stat.S_ISFIFO(pipe.stat().st_mode)  # otherwise its reader would wait for ever
    reader.join()
    assert read == [b"content"]


def test_a_descriptor_gets_the_content() -> None:
    """So does ``/dev/stdout``, which may be a pipe or any other file."""
    reading, writing = os.pipe()
    check_writable(f"/dev/fd/{writing}")
    write_atomically(f"/dev/fd/{writing}", "content")
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        assert file.read() == b"content"


def test_a_descriptors_file_is_not_replaced(tmp_path: Path) -> None:
    """Otherwise output that the shell redirects with ``>`` would go to a deleted file."""
    path = tmp_path / "file"
    with path.open("wb") as file:
        write_atomically(f"/dev/fd/{file.fileno()}", "content")
        assert os.path.samestat(path.stat(), os.fstat(file.fileno()))
    assert path.read_bytes() == b"content"


def test_a_device_gets_the_content() -> None:
    """The device is a terminal of our own, so that a mistake replaces no other device."""
    ours, terminal = os.openpty()
    path = os.ttyname(terminal)
    check_writable(path)
    write_atomically(path, "content")
    assert stat.S_ISCHR(Path(path).stat().st_mode)
    assert os.read(ours, 100) == b"content"
    os.close(terminal)
    os.close(ours)


def test_links_that_lead_round_are_refused(tmp_path: Path) -> None:
    for one, other in (("a", "b"), ("b", "a")):
        (tmp_path / one).symlink_to(other)
    for step in (check_writable, lambda path: write_atomically(path, "content")):
        with pytest.raises(FileError, match="cannot write"):
            step(tmp_path / "a")
    assert names(tmp_path) == {"a", "b"}


def test_permissions_are_the_old_files_or_the_users(tmp_path: Path) -> None:
    shared, new = tmp_path / "shared", tmp_path / "new"
    shared.write_text("old")
    shared.chmod(0o664)
    before = os.umask(0o077)
    try:
        for path in (shared, new):
            write_atomically(path, "content")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (shared, new)] == [0o664, 0o600]


def test_a_pipes_own_mode_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mode of its directory does not matter, as no file is made there."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path) == pipe)
    check_writable(pipe)


def test_a_directory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "directory"
    path.mkdir()
    with pytest.raises(FileError, match=rf"cannot write {path}: it is a directory"):
        check_writable(path)
    with pytest.raises(FileError, match=rf"cannot write {path}: "):
        write_atomically(path, "content")
    assert names(tmp_path) == {"directory"}


@pytest.mark.parametrize(
    ("failure", "raised"), [(OSError("disk full"), FileError), (KeyboardInterrupt(), None)]
)
def test_a_failure_leaves_what_was_there(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failure: BaseException,
    raised: type[Exception] | None,
) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fail(_descriptor: int) -> None:
        raise failure

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(raised or type(failure)):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert names(tmp_path) == {"file"}


def test_a_file_that_is_not_there_is_named_once(tmp_path: Path) -> None:
    path = tmp_path / "none"
    for read in (lambda: read_text(path, "model file"), lambda: read_model(path)):
        with pytest.raises(FileError) as said:
            read()
        assert str(said.value) == f"model file {path}: No such file or directory"
