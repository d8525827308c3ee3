"""The `dpjax` command; `dpjax --help` tells what it does."""

import ctypes
import importlib.util
import os
import sys

_MMAP_THRESHOLD = -3  # as malloc.h numbers it
_EXTRA = ("typer", "rich", "matplotlib", "polars")


def main() -> None:
    """Runs the command, or tells what to install where the extra is missing."""
    missing = [name for name in _EXTRA if not _is_installed(name)]
    if missing:
        print(
            f"The dpjax command needs {', '.join(missing)}: "
            'install with pip install "dpjax[experiments]".',
            file=sys.stderr,
        )
        sys.exit(2)
    # Polars keeps what a table took and has given back; training needs it.
    os.environ.setdefault("_RJEM_MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0")
    # So does the C library with arrays below 32 MiB, unless this limit is fixed.
    if sys.platform == "linux":
        set_option = getattr(ctypes.CDLL(None), "mallopt", None)
        if set_option is not None:  # musl has none
            set_option(_MMAP_THRESHOLD, 2**20)
    from dpjax.tables.cli._app import app

    app()


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False
