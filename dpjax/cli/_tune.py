"""`dpjax tune`: the best of a random number of private runs, in the files of one.

How many runs there were is in no output, and neither is anything of those that were
not released.
"""

import dataclasses
from typing import Any

import jax
import numpy as np
from dp_accounting import UnsupportedDpEvent
from rich.console import Console

from dpjax import _files
from dpjax._rounding import claim, digits
from dpjax.accounting import PrivacyGuarantee
from dpjax.cli import _display, _ledger, _report
from dpjax.cli._ranges import Ranges, charge
from dpjax.cli._release import begin
from dpjax.cli._runs import Run, name_of, score_run, stacked
from dpjax.cli._settings import public_name
from dpjax.cli._sources import encode_table
from dpjax.cli._spending import enter, on_sample, with_ranges
from dpjax.cli._terminal import show_paths, terminal
from dpjax.cli._train import load_public, read_private, warn_of_cells, write_release
from dpjax.cli._tune_plan import Search, apart, plan_search, run_search
from dpjax.cli._tune_settings import TuneSettings
from dpjax.solvers import Solution


def tune(settings: TuneSettings) -> None:
    """Searches, writes the best model's files and prints what may be printed.

    The folder of --checkpoint is as of `dpjax train`: a search that was stopped goes on
    from there, with the same number of runs, and without paying again.
    """
    first = settings.candidate(settings.choices()[0])  # for what they have in common
    release = begin(settings, _report.NAMES)
    key, ranges_key, sample_key = jax.random.split(release.key, 3)
    name = public_name(settings.source)
    table = ranges = paid = sampled = entry = None
    day = _ledger.today()
    if name is not None:
        data = load_public(name, first)
        release = release.bound(settings, None)
        search = plan_search(settings, data, is_named=True)
    else:
        table = read_private(first, sample_key)
        release = release.bound(settings, table)
        first, sampled = on_sample(first, table)
        settings = dataclasses.replace(
            settings, epsilon=first.epsilon, delta=first.delta
        )
        blank, ranges = with_ranges(first, table.blank(), key=jax.random.key(0))
        search = plan_search(settings, encode_table(blank), is_named=False)
        paid = _total(search, ranges)
        if settings.ledger is not None:
            method = f"{search.plans[0].method.title}, tuned"
            parts = {"tuning": table.protected(paid)}
            folder = release.run_folder
            entry = enter(settings, table, parts, method=method, run_folder=folder)
            day = entry.at  # a search that goes on began earlier
        warn_of_cells(table, first)
        table, ranges = with_ranges(first, table, key=ranges_key)
        data = encode_table(table)

    console, messages = terminal(), terminal(stderr=True)
    _display.warn_of_weakness(messages, search.plans[0], ranges)
    # When a search ended tells how many runs it made: no bar moves, and all that it
    # writes is of the day on which it began. The folder is made now, and not then.
    messages.print("The private search is on its way.")
    with _files.made(release.folder):
        with release.kept():
            solution = run_search(
                search,
                data,
                key=key,
                holdout=settings.holdout,
                checkpoint=release.run_folder and release.run_folder.states,
            )
        best = int(solution.stats["candidate"])
        plan = search.plans[best]
        score = float(solution.stats["score"])
        run = charge(_released(name_of(plan), solution), ranges)
        privacy = run.solution.privacy
        if paid is not None and (
            privacy.epsilon > paid.epsilon or privacy.delta > paid.delta
        ):
            raise RuntimeError("The search's guarantee is not what was paid for.")
        if table is not None:
            run = run.stated(table.protected)
            ranges = table.restated(ranges)
        trained, scored = apart(data, settings.holdout)
        test = [(run, score_run(plan, data, run))] if name is not None else []
        said = _said(settings, search, best, score, len(scored[1]))
        files = _report.files_of(
            *(plan, trained, run, test, ranges, table),
            {"tuning": said, "sample": sampled, "ledger_entry": entry and entry.id},
            is_public=name is not None,
            noise_key=release.noise_key,
        )
        write_release(release, files)
        paths = [release.folder / name for name in files]
        _files.date_at(day, *paths, release.folder)
    _display.show(
        *(console, plan, trained, run, test, ranges), is_public=name is not None
    )
    if sampled is not None:
        _display.show_sample(console, sampled)
    _show(console, said, len(search.choices))
    show_paths(console, paths)


def _total(search: Search, ranges: Ranges | None) -> PrivacyGuarantee:
    """Returns what is paid for: the whole budget, and the releases beside it."""
    total = PrivacyGuarantee.of(*search.total, dp_event=UnsupportedDpEvent())
    return total if ranges is None else ranges.joined(total)


def _released(name: str, solution: Solution) -> Run:
    """Returns the best run; its place and score are told apart from its stats."""
    own = {
        name: value
        for name, value in solution.stats.items()
        if name not in ("candidate", "score")
    }
    solution = dataclasses.replace(solution, stats=own)
    return Run(name, solution, np.zeros(1), stacked([solution.params]))


def _said(
    settings: TuneSettings, search: Search, best: int, score: float, num_scored: int
) -> dict[str, Any]:
    """Returns what may be said of a search, ready for JSON."""
    return {
        "over": settings.grid(),
        "chosen": search.choices[best],
        "score": score if np.isfinite(score) else None,
        "score_limit": search.score_limit,
        "scored_on": search.scored_on,
        "num_scored": num_scored,
        "mean_trials": search.mean_trials,
        "distribution": "geometric",
        "each_run": search.each_run._asdict(),
        "each_score": search.each_score._asdict(),
    }


def _show(console: Console, said: dict[str, Any], num_candidates: int) -> None:
    chosen = ", ".join(f"{name} = {value}" for name, value in said["chosen"].items())
    where = "the records that it was trained on"
    if said["scored_on"] == "holdout":
        where = f"{said['num_scored']:,} records that no run was trained on"
    loss = "unknown" if said["score"] is None else digits(-said["score"])
    console.print(
        f"Chosen of {num_candidates} candidates, by about {said['mean_trials']:g} "
        f"private runs of {claim(**said['each_run'], digits=4)} each: {chosen}. "
        f"Its mean loss, cut off at {said['score_limit']:g} and with noise, is {loss} "
        f"on {where}; as the best of several it looks better than it is."
    )
    console.print(
        "How many runs there were must stay secret: keep how long this took from "
        "whoever sees the model. The files are dated back to the day when it began; "
        "give away copies, since a disk also keeps when a file really changed."
    )
