"""The `dpjax` command; `dpjax --help` lists its commands."""

import atexit
import contextlib
import ctypes
import gc
import importlib.util
import os
import sys

_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of malloc.h
_EXTRA = ("typer", "rich", "matplotlib", "polars", "platformdirs")


def main() -> None:
    """Runs the `dpjax` command, or says what to install if a package is missing."""
    missing = [*_EXTRA]
    for name in _EXTRA:
        with contextlib.suppress(ImportError):
            if importlib.util.find_spec(name) is not None:
                missing.remove(name)
    if missing:
        print(
            f"The dpjax command needs {', '.join(missing)}: "
            'install with pip install "dpjax[experiments]".',
            file=sys.stderr,
        )
        sys.exit(2)
    # Polars would keep the memory of freed tables, which training needs.
    os.environ.setdefault("_RJEM_MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0")
    # The C library would keep freed arrays below 32 MiB, unless this limit is set.
    if sys.platform == "linux":
        set_option = getattr(ctypes.CDLL(None), "mallopt", None)
        if set_option is not None:  # musl has no mallopt
            set_option(_MMAP_THRESHOLD, 2**20)
    # Few objects of a run are garbage in cycles. Looking for it takes a third of a
    # short run: half of that at the end, when Python looks at every object.
    gc.set_threshold(1_000_000)
    atexit.register(gc.freeze)
    from dpjax.tables.cli._app import app

    app()
