"""What a call is at, in a notebook: its stage, its steps and the time, all public.

A call that ends within a second shows nothing, and what was shown goes when it ends.
Outside of notebooks nothing is shown.
"""

import contextlib
import html
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

_INTERVAL = 1.0  # seconds between two looks at what is done


class _Line:
    """A line below a cell, kept up to date from a thread of its own."""

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


_LINES: list[_Line] = []  # one at most: calls within a call show none of their own


@contextlib.contextmanager
def shown(name: str) -> Iterator[None]:
    """Shows what runs within, or a function that this decorates, in a notebook.

    Example:
        >>> with shown("Fitting"):
        ...     say("training (compiling)")
    """
    # Whoever is in a notebook has imported IPython.
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
    """Tells whether somebody sees the messages."""
    return bool(_LINES)


def say(stage: str, done: int = 0, total: int | None = None) -> None:
    """Says what a call is at: public names and numbers alone."""
    for line in _LINES:
        line.said = (stage, done, total)


def on_step(step: Any, params: Any) -> None:
    """Says how many steps are done; a callback of solvers, one for all programs."""
    del params  # covered by the guarantee, and nobody asked for them
    say("training", int(step))
