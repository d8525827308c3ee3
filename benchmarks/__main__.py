"""The command: measures into records, and writes the pages from them.

`run` measures speed, `utility` what models of tables are worth, `deep` networks,
`winners` who wins where, `coverage` how often intervals hold the truth, `intervals`
what one is worth, `conformance` runs the peers' own tests, `guarantees --audit` what
attacks find of the claims, `audit` of one of them; `figures` lists, runs and reports
the papers' figures.
`report` writes every page, and the plots of README and the site, from the records.
"""

import argparse
import importlib
import sys
from functools import partial
from pathlib import Path

from benchmarks import comparison, coverage, intervals, winners
from benchmarks.conformance import command as conformance
from benchmarks.deep import methods as deep
from benchmarks.figures import run as figures
from benchmarks.speed import measure as speed
from benchmarks.utility import page as utility

# Modules whose `write` writes a page, or several, and returns the files.
PAGES = {
    "speed": "benchmarks.speed.page",
    "utility": "benchmarks.utility.page",
    "untuned": "benchmarks.utility.untuned",
    "deep": "benchmarks.deep.page",
    "coverage": "benchmarks.coverage",
    "conformance": "benchmarks.conformance.command",
    "figures": "benchmarks.figures.page",
    "guarantees": "benchmarks.guarantees",
    "plots": "benchmarks.plots",
}


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (function, text, options) in COMMANDS.items():
        one = commands.add_parser(name, help=text)
        one.set_defaults(function=function)
        if callable(options):
            options(one)
        else:
            for option, settings in options.items():
                one.add_argument(option, **settings)
    chosen = vars(parser.parse_args(arguments))
    function = chosen.pop("function")
    del chosen["command"]
    try:
        for path in function(**chosen) or ():
            print(path)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")


def report(pages):
    """Writes pages, and yields where they lie."""
    for name in pages:
        if name not in PAGES:
            raise ValueError(f"page = {name!r}: must be one of {', '.join(PAGES)}")
    for name in pages or PAGES:
        yield from importlib.import_module(PAGES[name]).write()


def guarantees(audit, output):
    """Writes the page of guarantees, after what audits it lacks."""
    from benchmarks import guarantees

    return guarantees.write(output, with_audits=audit)


def audit(**options):
    """Lists the claims that can be attacked, or attacks one."""
    from benchmarks.audits import command

    command.audit(**options)


def _fill(module, text):
    option = {"type": Path, "default": module.PATH, "help": "the record"}
    return module.run, text, {"--out": option}


def _compare(suites, text):
    arguments = partial(comparison.add_arguments, suites)
    return partial(comparison.run, suites), text, arguments


_GUARANTEES = {
    "--audit": {"action": "store_true", "help": "first audit what is new"},
    "--output": {"type": Path, "help": "file of the page"},
}
_AUDIT = {
    "name": {"nargs": "?", "default": "list", "help": "list prints all names"},
    "--releases": {"type": int, "help": "how many to draw"},
    "--seed": {"type": int, "default": 0, "help": "of the releases"},
    "--output": {"type": Path, "help": "a PNG file"},
}
_CONFORMANCE = {
    "--peers": {"type": Path, "required": True, "help": "folder of source archives"},
    "--out": {"type": Path, "default": conformance.PATH, "help": "the record"},
}
_REPORT = {"pages": {"nargs": "*", "help": f"of {', '.join(PAGES)}; by default all"}}
_PEAK = {"case": {}, "method": {}}
# Functions, help, and options: what adds them, or a table.
COMMANDS = {
    "run": (speed.main, "measure speed", speed.add_arguments),
    "utility": _compare(utility.PARTS, "measure models of tables"),
    "deep": _compare(deep.PARTS, "train networks"),
    "figures": (figures.main, "the papers' figures", figures.add_arguments),
    "winners": _fill(winners, "measure who wins where, in minutes"),
    "intervals": _fill(intervals, "measure what intervals that ignore noise are worth"),
    "coverage": _fill(coverage, "measure how often intervals hold"),
    "conformance": (conformance.conform, "run the peers' tests", _CONFORMANCE),
    "guarantees": (guarantees, "write dpjax/GUARANTEES.md", _GUARANTEES),
    "audit": (audit, "attack a claim, and draw the attack", _AUDIT),
    "report": (report, "write pages from the records", _REPORT),
    "peak": (speed.peak, "peak memory of one method, for `run`", _PEAK),
}

if __name__ == "__main__":
    main()
