"""Files are replaced, and never written through a link."""

import os

import pytest

from dpjax._files import locked, write_whole
from tests.unit.cli.command import tree


def test_a_file_takes_the_place_of_a_link(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_whole(link, b"new", name="--output")
    assert target.read_text() == "old"
    assert not link.is_symlink()
    assert link.read_bytes() == b"new"


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666])
def test_a_file_that_is_replaced_keeps_its_mode(mode, tmp_path):
    path = tmp_path / "secret"
    path.write_bytes(b"old")
    path.chmod(mode)
    write_whole(path, b"new", name="--output")
    assert path.stat().st_mode & 0o777 == mode


@pytest.mark.parametrize("number", [os.getpid(), 7], ids=["process", "other"])
def test_no_link_is_written_through(number, tmp_path, monkeypatch):
    target, path = tmp_path / "target", tmp_path / "out"
    target.write_text("old")
    for name in (f".out.{number}.part", ".out.lock"):
        (tmp_path / name).symlink_to(target)
    write_whole(path, b"new")  # the name that it takes cannot be known
    monkeypatch.setattr("secrets.randbits", lambda _: number)  # or it is
    before = tree(tmp_path)
    with pytest.raises(OSError, match="File exists"):
        write_whole(path, b"newer")
    with pytest.raises(OSError, match="symbolic link"), locked(path):
        pass
    assert tree(tmp_path) == before
