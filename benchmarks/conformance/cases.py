"""Runs one test file of a peer with adapters in its namespace, and sorts its cases."""

import contextlib
import importlib
import sys
import unittest
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path
from unittest.mock import patch

import pytest

from benchmarks.conformance.adapter import USED, patched
from benchmarks.conformance.command import KINDS


def run(package: str, path: Path, expression: str, differs: dict[str, str]):
    """Returns counts of a file's cases, in a process of its own: JAX has settings."""
    importlib.import_module(f"benchmarks.conformance.of_{package}")
    cases = _Cases(differs)
    # Wheels may hold the tests, too: those of the folder are run.
    options = ["-q", "-p", "no:cacheprovider", "--import-mode=importlib"]
    options += ["-W", "ignore", f"--rootdir={path.parent}", "-k", expression, str(path)]
    compared = patch.object(unittest.TestCase, "assertRaisesRegex", _assert_raises)
    with contextlib.redirect_stdout(sys.stderr), compared:
        pytest.main(options, plugins=[cases])
    return cases.row()


def _assert_raises(self, kind, words, *call, **given):
    raises = unittest.TestCase.assertRaises  # the words of an error are dpjax's own
    return raises(self, kind, *call, **given)


class _Cases:
    """Sorts cases: a case is taken only if it used an adapter, and so dpjax."""

    def __init__(self, differs):
        self.differs, self.failures = differs, {}
        self.reasons = {kind: Counter() for kind in KINDS}

    def pytest_collection_modifyitems(self, items):
        for module in {item.module for item in items}:
            for name, value in list(vars(module).items()):
                if (seen := patched(value)) is not value:
                    setattr(module, name, seen)

    def pytest_runtest_setup(self):
        USED.clear()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        if call.when == "call":
            self._sort(item.nodeid.split("::", 1)[1], report, call.excinfo)
        return report

    def _sort(self, name, report, excinfo):
        error = excinfo and excinfo.value
        planned = [key for like, key in self.differs.items() if fnmatch(name, like)]
        kind, reason = "passed", ""
        if report.outcome == "skipped":
            kind, reason = "not_applicable", str(error)
        elif not USED:
            kind, reason = "not_applicable", "nothing that has a counterpart"
        elif isinstance(error, AssertionError | ValueError) and planned:
            kind, reason = "differs", planned[0]
        elif error:
            kind, self.failures[name] = "failed", repr(error)[:200]
        self.reasons[kind][reason] += 1

    def row(self):
        reasons = {kind: dict(self.reasons[kind]) for kind in KINDS[2:]}
        counts = {kind: self.reasons[kind].total() for kind in KINDS}
        return counts | {"reasons": reasons, "failures": self.failures}
