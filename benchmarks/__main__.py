"""The command: `run` measures and writes one record, `report` the pages from it.

`figures` lists, runs and reports the papers' figures, `scaling` that of many devices,
`guarantees` that of claims and what audits found, `utility` that of what a private
linear model is worth, `deep` that of networks. `winners` measures who wins where, and
`plots` draws the plots of README and the site from the records.
"""

import argparse
import json
import sys
import time
from datetime import datetime
from pathlib import Path

import jax

from benchmarks import deep, utility
from benchmarks.figures import command as figures
from dpjax._files import check_folder


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measure a suite and write one record")
    run.add_argument("--suite", choices=["cpu", "gpu"], default="cpu")
    run.add_argument("--quick", action="store_true", help="small data, few repeats")
    run.add_argument("--case", action="append", help="run this case only; repeatable")
    run.add_argument("--output", type=Path, help="folder of the record")
    report = commands.add_parser("report", help="write the pages from a record")
    report.add_argument("record", type=Path, nargs="*", help="by default the latest")
    report.add_argument("--output", type=Path, help="folder of the pages")
    figures.add_arguments(
        commands.add_parser("figures", help="list, run and report the papers' figures")
    )
    scaling = commands.add_parser("scaling", help="write the page of many devices")
    scaling.add_argument("--quick", action="store_true", help="few repeats, 8 devices")
    scaling.add_argument("--output", type=Path, help="folder of the page")
    guarantees = commands.add_parser("guarantees", help="write dpjax/GUARANTEES.md")
    guarantees.add_argument(
        "--audit",
        action="store_true",
        help="first audit what the record lacks, or what has a new claim",
    )
    guarantees.add_argument("--output", type=Path, help="file of the page")
    peak = commands.add_parser("peak", help="peak memory of one method, for `run`")
    peak.add_argument("case")
    peak.add_argument("method")
    peak.add_argument("--quick", action="store_true")
    utility.add_arguments(
        commands.add_parser("utility", help="measure linear models, write UTILITY.md")
    )
    deep.add_arguments(
        commands.add_parser("deep", help="train networks, write DEEP.md")
    )
    winners = commands.add_parser("winners", help="measure who wins where, in minutes")
    winners.add_argument("--output", type=Path, help="file of the record")
    plots = commands.add_parser("plots", help="draw the plots of README and the site")
    plots.add_argument("--output", type=Path, help="folder of the plots")
    options = vars(parser.parse_args(arguments))
    commands = {
        "run": _run,
        "report": _report,
        "figures": figures.main,
        "scaling": _scaling,
        "guarantees": _guarantees,
        "peak": _peak,
        "utility": utility.main,
        "deep": deep.main,
        "winners": _winners,
        "plots": _plots,
    }
    command = commands[options.pop("command")]
    try:
        command(**options)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")


def _run(suite, quick, case, output):
    from benchmarks import floor, record, runner
    from benchmarks.suites import SUITES

    names = [one.name for one in SUITES[suite]]
    for name in case or ():
        if name not in names:
            raise ValueError(f"case = {name!r}: must be one of {', '.join(names)}")
    output = record.RESULTS if output is None else output
    check_folder("output", output)
    if suite == "cpu":
        jax.config.update("jax_platforms", "cpu")
    elif jax.default_backend() == "cpu" and not quick:
        raise ValueError("suite = gpu: without a GPU it runs with --quick only")
    jax.config.update("jax_enable_compilation_cache", False)
    started, begin = datetime.now().isoformat(timespec="seconds"), time.perf_counter()
    machine = record.machine()
    speed = floor.measure(quick)
    cases = {}
    for one in SUITES[suite]:
        if case and one.name not in case:
            continue
        start = time.perf_counter()
        cases[one.name] = runner.run_case(one, quick=quick)
        if one.quick_peak or (one.has_peak and not quick):
            cases[one.name] = runner.with_peaks(one, cases[one.name], quick=quick)
        seconds = time.perf_counter() - start
        print(f"{one.name}: {seconds:.0f} s", flush=True)
        for name, reason in cases[one.name].left_out.items():
            print(f"  left out: {name}: {reason}", flush=True)
    path = record.write(
        record.Record(
            suite=suite,
            is_quick=quick,
            is_whole=not case,
            started=started,
            seconds=time.perf_counter() - begin,
            commit=record.commit(),
            machine=machine,
            versions=record.versions(),
            floor=speed,
            cases=cases,
        ),
        output,
    )
    print(path)


def _report(record, output):
    from benchmarks import report

    for path in report.write_pages(record, output):
        print(path)


def _scaling(quick, output):
    from benchmarks import scaling

    for path in scaling.write_page(output, quick=quick):
        print(path)


def _guarantees(audit, output):
    from benchmarks import guarantees

    print(guarantees.write_page(output, with_audits=audit))


def _winners(output):
    from benchmarks import winners

    print(winners.run(output))


def _plots(output):
    from benchmarks import plots_site

    for path in plots_site.draw(output):
        print(path)


def _peak(case, method, quick):
    jax.config.update("jax_platforms", "cpu")
    from benchmarks import runner
    from benchmarks.suites import CASES

    (found,) = (one for one in CASES[case].build(quick) if one.name == method)
    print(json.dumps(runner.peak_bytes(found)))


if __name__ == "__main__":
    main()
