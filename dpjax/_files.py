"""Output files: checked before any budget is spent, and written completely or not."""

import contextlib
import os
import secrets
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any, BinaryIO

from dpjax import _validate


def check_folder(option: str, folder: Path, *, names: Iterable[str] = ()) -> None:
    """Requires a folder that can be written to, or made, for files of these names."""
    blocked = [f", without a folder {x} in it" for x in names if (folder / x).is_dir()]
    rule = "a folder that can be written to, or made" + "".join(blocked)
    _validate.require(can_be_folder(folder) and not blocked, option, str(folder), rule)


def check_file(option: str, path: Path, *, suffix: str = "") -> None:
    """Requires a path for a file, in a folder that can be written to, or made."""
    ending = f" that ends in {suffix}" if suffix else ""
    rule = f"a file{ending}, in a folder that can be written to, or made"
    is_file = not path.is_dir() and can_be_folder(path.parent)
    is_named = not suffix or path.suffix == suffix
    _validate.require(is_file and is_named, option, str(path), rule)


def check_spared(
    option: str, outputs: Iterable[Path], inputs: Mapping[str, Path]
) -> None:
    """Raises `ValueError` if an output is an input, or is directly in an input folder.

    Otherwise a command would overwrite what it reads. `option` names the outputs in the
    error, the keys of `inputs` name the inputs. Paths may be spelled differently.
    """
    for output in outputs:
        for name, path in inputs.items():
            rule = f"another file than {name} {path}, which is read, and not in it"
            is_fine = _place(path) not in (_place(output), _place(output.parent))
            _validate.require(is_fine, option, str(output), rule)


def can_be_folder(path: Path) -> bool:
    """Returns whether a path is a writable folder, or a folder can be made there."""
    places = (path.absolute(), *path.absolute().parents)
    try:
        there = next(place for place in places if os.path.lexists(place))
        return there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    except OSError:  # a parent may not be read
        return False


def is_within(inner: Path, outer: Path) -> bool:
    """Returns whether path `inner` is `outer` or lies inside it, in any spelling."""
    # Links and `..` are followed, and a folder that is mounted twice is one folder.
    # Case is ignored in parts that do not exist, as some file systems ignore it.
    inner = Path(os.path.realpath(inner))
    return _place(outer) in map(_place, (inner, *inner.parents))


def _place(path: Path) -> tuple[Any, ...]:
    """Returns (device, inode, *parts not on disk): equal if two paths name one file."""
    path = Path(os.path.realpath(path))
    existing = next(place for place in (path, *path.parents) if place.exists())
    status = existing.stat()
    new = (
        unicodedata.normalize("NFC", part).casefold()
        for part in path.relative_to(existing).parts
    )
    return status.st_dev, status.st_ino, *new


@contextlib.contextmanager
def replacing(path: Path, *, is_secret: bool = False) -> Iterator[BinaryIO]:
    """Yields a file to write, which gets the name `path` when the block succeeds.

    If the block fails, the temporary file is removed and an existing file stays. A new
    file keeps the mode of the old one, but only its owner can read a secret one. If the
    path is a link, the file replaces the link, not its target. The temporary name is
    random, so nobody can predict it.
    """
    partial = path.with_name(f".{path.name}.{secrets.randbits(64)}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = path.stat().st_mode & 0o777 if path.exists() else None
    mode = 0o600 if is_secret else mode
    # O_EXCL fails if the file exists, even as a link that somebody else has put there.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    descriptor = os.open(partial, flags, 0o666 if mode is None else mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None and hasattr(os, "fchmod"):
                os.fchmod(file.fileno(), mode)  # `os.open` has applied the umask
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        with contextlib.suppress(OSError):  # after success it has another name
            partial.unlink()


def write_whole(
    path: Path, content: bytes, *, name: str = "file", is_secret: bool = False
) -> None:
    """Writes a file completely or not at all; an `OSError` tells its option, `name`."""
    try:
        with replacing(path, is_secret=is_secret) as file:
            file.write(content)
    except OSError as why:
        raise OSError(f"{name} {path} could not be written to: {why}.") from why


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Waits until no other process has the lock of a file, and holds it in the block.

    Processes that read and replace a file, such as a ledger, then take turns. The lock
    is on an empty file next to it, `.NAME.lock`, which stays, because the file itself
    is replaced. The lock ends with the block or the process.
    """
    import fcntl  # not on Windows, where the rest of the package works

    def without_links(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW, 0o666)

    lock = path.with_name(f".{path.name}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(lock, "ab", opener=without_links) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def date_at(day: date, *paths: Path) -> None:
    """Sets files' times to the start of a UTC day, to hide when they were written."""
    at = datetime.combine(day, time(), UTC).timestamp()
    for path in paths:
        with contextlib.suppress(OSError):
            os.utime(path, (at, at))


def write_together(
    folder: Path,
    contents: Mapping[str, bytes],
    *,
    name: str,
    before: Callable[[], None] = lambda: None,
) -> None:
    """Writes files into a folder, all of them or none.

    `contents` maps names to bytes. When all files are on disk under temporary names,
    `before` is called, such as to delete a key that must not outlive the release. Then
    files are renamed in this order. If `before` raises, the folder is unchanged. `name`
    is the option that gave the folder, for the message of an `OSError`.
    """
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as last_first:
            for file_name, content in reversed([*contents.items()]):
                file = last_first.enter_context(replacing(folder / file_name))
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            before()
    except BaseException as why:
        if is_new:
            with contextlib.suppress(OSError):  # the folder may hold files
                folder.rmdir()
        if not isinstance(why, OSError):
            raise
        raise OSError(f"{name} {folder} could not be written to: {why}.") from why
