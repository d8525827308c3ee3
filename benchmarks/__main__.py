"""The command: measures into records, and writes the pages from them.

`run` measures speed, `utility` what models of tables are worth, `deep` networks,
`winners` who wins where, `coverage` how often intervals hold the truth, `intervals`
what one is worth, `guarantees --audit` what attacks find of the
claims, `audit` of one of them; `figures` lists, runs and reports the papers' figures.
`report` writes every page, and the plots of README and the site, from the records.
"""

import argparse
import importlib
import sys
from pathlib import Path

from benchmarks import coverage, intervals, winners
from benchmarks.deep import command as deep
from benchmarks.figures import command as figures
from benchmarks.speed import command as speed
from benchmarks.utility import command as utility

# Modules whose `write` writes a page, or several, and returns the files.
PAGES = {
    "speed": "benchmarks.speed.page",
    "utility": "benchmarks.utility.page",
    "deep": "benchmarks.deep.page",
    "coverage": "benchmarks.coverage",
    "figures": "benchmarks.figures.page",
    "guarantees": "benchmarks.guarantees",
    "plots": "benchmarks.plots",
}


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    speed.add_arguments(commands.add_parser("run", help="measure speed"))
    utility.add_arguments(
        commands.add_parser("utility", help="measure models of tables")
    )
    deep.add_arguments(commands.add_parser("deep", help="train networks"))
    figures.add_arguments(commands.add_parser("figures", help="the papers' figures"))
    one = commands.add_parser("winners", help="measure who wins where, in minutes")
    one.add_argument("--out", type=Path, default=winners.PATH, help="the record")
    text = "measure what intervals that ignore noise are worth, in minutes"
    one = commands.add_parser("intervals", help=text)
    one.add_argument("--out", type=Path, default=intervals.PATH, help="the record")
    one = commands.add_parser("coverage", help="measure how often intervals hold")
    one.add_argument("--out", type=Path, default=coverage.PATH, help="the record")
    one = commands.add_parser("guarantees", help="write dpjax/GUARANTEES.md")
    one.add_argument(
        "--audit",
        action="store_true",
        help="first audit what the record lacks, or what has a new claim",
    )
    one.add_argument("--output", type=Path, help="file of the page")
    one = commands.add_parser("audit", help="attack a claim, and draw the attack")
    one.add_argument("name", nargs="?", default="list", help="list prints all names")
    one.add_argument("--releases", type=int, help="how many to draw")
    one.add_argument("--seed", type=int, default=0, help="of the releases")
    text = "PNG file; dpjax-output/NAME-audit.png by default"
    one.add_argument("--output", type=Path, help=text)
    one = commands.add_parser("report", help="write pages from the records")
    one.add_argument("pages", nargs="*", help=f"of {', '.join(PAGES)}; by default all")
    one = commands.add_parser("peak", help="peak memory of one method, for `run`")
    one.add_argument("case")
    one.add_argument("method")
    options = vars(parser.parse_args(arguments))
    commands = {
        "run": speed.main,
        "utility": utility.main,
        "deep": deep.main,
        "figures": figures.main,
        "winners": winners.run,
        "intervals": intervals.run,
        "coverage": coverage.run,
        "guarantees": guarantees,
        "audit": audit,
        "report": report,
        "peak": speed.peak,
    }
    command = commands[options.pop("command")]
    try:
        command(**options)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")


def report(pages):
    """Writes pages, and prints where they lie."""
    for name in pages:
        if name not in PAGES:
            raise ValueError(f"page = {name!r}: must be one of {', '.join(PAGES)}")
    for name in pages or PAGES:
        for path in importlib.import_module(PAGES[name]).write():
            print(path)


def guarantees(audit, output):
    """Writes the page of guarantees, after what audits it lacks."""
    from benchmarks import guarantees

    for path in guarantees.write(output, with_audits=audit):
        print(path)


def audit(**options):
    """Lists the claims that can be attacked, or attacks one."""
    from benchmarks.audits import command

    command.audit(**options)


if __name__ == "__main__":
    main()
