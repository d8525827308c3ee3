"""Files that are written: refused before anything is spent, then written whole."""

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
    """Requires a folder that can be written to, or made.

    Args:
        option: that named the folder.
        folder: where to write.
        names: of the files; none may be a folder.

    Raises:
        ValueError: with the option, if the folder is a file, a link to nowhere, lies
            below one, or is not writable.
    """
    _validate.require(
        _validate.can_be_folder(folder)
        and not any((folder / name).is_dir() for name in names),
        option,
        str(folder),
        "a folder that can be written to, or made",
    )


def check_file(option: str, path: Path, *, suffix: str = "") -> None:
    """Requires a path for a file, in a folder that can be written to, or made.

    Raises:
        ValueError: with the option, if not.
    """
    ending = f" that ends in {suffix}" if suffix else ""
    _validate.require(
        (not suffix or path.suffix == suffix)
        and not path.is_dir()
        and _validate.can_be_folder(path.parent),
        option,
        str(path),
        f"a file{ending}, in a folder that can be written to, or made",
    )


def check_spared(
    option: str, outputs: Iterable[Path], inputs: Mapping[str, Path]
) -> None:
    """Requires that no file that is read would be written over.

    Args:
        option: that named the outputs.
        outputs: all files that will be written.
        inputs: the files that are read, by the option that named them.

    Raises:
        ValueError: with the option, if an output is an input under any name.
    """
    for output in outputs:
        for name, path in inputs.items():
            _validate.require(
                _place(output) != _place(path),
                option,
                str(output),
                f"another file than {name} {path}, which is read",
            )


def is_within(inner: Path, outer: Path) -> bool:
    """Tells whether a path is another one or lies inside it, however both are spelled.

    Links and `..` are followed, and one folder that is mounted twice is one. Where
    nothing exists as yet, upper and lower case are the same, as some disks have it.

    Example:
        >>> is_within(Path("out/../kept/key"), Path("kept"))
        True
        >>> is_within(Path("kept"), Path("kept-too"))
        False
    """
    inner = Path(os.path.realpath(inner))
    return _place(outer) in map(_place, (inner, *inner.parents))


def _place(path: Path) -> tuple[Any, ...]:
    """Returns what all spellings of a path share: a folder on disk, and what is new."""
    path = Path(os.path.realpath(path))
    existing = next(place for place in (path, *path.parents) if place.exists())
    status = existing.stat()
    new = (
        unicodedata.normalize("NFC", part).casefold()
        for part in path.relative_to(existing).parts
    )
    return status.st_dev, status.st_ino, *new


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Opens a file under a temporary name; it gets its own when the block ends well.

    Else nothing is left of it, and what stood there stays, with its mode. Where the
    path is a link, the file takes the link's place, and what the link led to stays as
    it is. Nobody can put a file or a link where the temporary one will be: it has a
    random name.
    """
    partial = path.with_name(f".{path.name}.{secrets.randbits(64)}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = path.stat().st_mode & 0o777 if path.exists() else None
    # Exclusive: it must not exist, not even as a link.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    descriptor = os.open(partial, flags, 0o666 if mode is None else mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None and hasattr(os, "fchmod"):
                os.fchmod(file.fileno(), mode)  # the umask has taken its part
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        with contextlib.suppress(OSError):  # it has its name
            partial.unlink()


def write_whole(path: Path, content: bytes, *, name: str = "file") -> None:
    """Writes a file whole or not at all, as `replacing` does.

    Raises:
        OSError: if it cannot be written, with the name of the option that chose it.
    """
    try:
        with replacing(path) as file:
            file.write(content)
    except OSError as why:
        raise OSError(f"{name} {path} could not be written to: {why}.") from why


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keeps other processes out that would read and write a file anew, and waits.

    The lock is on an empty file beside it, `.NAME.lock`, which stays: the file itself
    is replaced. It ends with the process.
    """
    import fcntl  # which Windows lacks: the rest of the package works there

    lock = path.with_name(f".{path.name}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(lock, "ab", opener=_opened_without_links) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _opened_without_links(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


@contextlib.contextmanager
def made(folder: Path) -> Iterator[None]:
    """Makes a folder; a new one that stays empty goes again when the block fails."""
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        if is_new:
            with contextlib.suppress(OSError):  # it holds files
                folder.rmdir()
        raise


def date_at(day: date, *paths: Path) -> None:
    """Says of files and folders that they were changed when a day began, in UTC.

    For what must not tell when it was written: as far as copies keep a time, they keep
    this one. Where a time may not be set it stays.
    """
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

    Only when all are complete do they take their names, in their order.

    Args:
        folder: it is made where it is missing.
        contents: of the files, by their names.
        name: of the option that chose the folder.
        before: called when all are complete, and none has its name; what it raises
            leaves the folder as it was.

    Raises:
        OSError: if they cannot be written, with the name of the option.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp(), "out")
        >>> write_together(folder, {"report.json": b"{}"}, name="--output")
        >>> [path.name for path in folder.iterdir()]
        ['report.json']
    """
    try:
        with made(folder), contextlib.ExitStack() as last_first:
            for file_name, content in reversed([*contents.items()]):
                file = last_first.enter_context(replacing(folder / file_name))
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            before()
    except OSError as why:
        raise OSError(f"{name} {folder} could not be written to: {why}.") from why
