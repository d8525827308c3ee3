"""A progress line in notebooks: the stage, the steps and the time, all public.

The line appears after a second, and disappears when the call ends.
"""

import contextlib
import html
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

_INTERVAL = 1.0  # seconds between two updates of the line


class _Line:
    """A line below a notebook cell, which a thread of its own keeps up to date."""

    def __init__(self, name: str, show: Any):
        self.said: tuple[str, int, int | None] = (name, 0, None)
        self._show, self._start = show, time.monotonic()
        self._handle: Any = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._is_over.wait(_INTERVAL):
            content = self._content()
            if self._handle is None:
                self._handle = self._show(content, raw=True, display_id=True)
            else:
                self._handle.update(content, raw=True)

    def _content(self) -> dict[str, str]:
        """Returns the line by MIME type, for IPython: as text, and as an HTML bar."""
        stage, done, total = self.said
        if total is not None:
            stage += f", {done} of {total}"
        elif done:
            stage += f", step {done}"
        text = f"{stage}, {time.monotonic() - self._start:.0f} s"
        share = "" if total is None else f' value="{done}" max="{total}"'
        page = f"<progress{share}></progress> {html.escape(text)}"
        return {"text/plain": text, "text/html": page}

    def end(self) -> None:
        self._is_over.set()
        self._thread.join()
        if self._handle is not None:
            self._handle.update({"text/plain": "", "text/html": ""}, raw=True)


_LINES: list[_Line] = []  # at most one line, because nested calls show none


@contextlib.contextmanager
def shown(name: str) -> Iterator[None]:
    """Shows a progress line in a notebook while a `with` block or a function runs.

    `name` is the first stage in the line, and `say` sets the next. Outside of notebooks
    and in nested calls nothing is shown.
    """
    # In a notebook IPython is imported already, so this needs no import.
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if getattr(shell, "kernel", None) is None or _LINES:
        yield
        return
    _LINES.append(_Line(name, sys.modules["IPython.display"].display))
    try:
        yield
    finally:
        _LINES.pop().end()


def is_shown() -> bool:
    """Returns whether a progress line is active."""
    return bool(_LINES)


def say(stage: str, done: int = 0, total: int | None = None) -> None:
    """Sets the stage and the steps in the line; arguments must be public."""
    for line in _LINES:
        line.said = (stage, done, total)


def on_step(step: Any, params: Any) -> None:
    """Shows the number of steps done; a callback of solvers."""
    del params  # the line shows public numbers only
    say("training", int(step))
