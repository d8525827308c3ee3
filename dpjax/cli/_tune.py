"""`dpjax tune`: the best of a random number of private runs, in the files of one.

No output contains the number of runs, or anything of the runs that are not released.
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

    As with `dpjax train`, a search that was stopped is resumed from the folder of
    --checkpoint, with the same number of runs, and at no further cost.
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
    # The time at which a search ends reveals its number of runs. So no progress bar is
    # shown, the folder is made now, and all files get the date on which it began.
    messages.print("The private search has started.")
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
    """Returns the guarantee of the search and of the released ranges."""
    total = PrivacyGuarantee.of(*search.total, dp_event=UnsupportedDpEvent())
    return total if ranges is None else ranges.joined(total)


def _released(name: str, solution: Solution) -> Run:
    """Returns the best run; its stats are without candidate and score."""
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
    """Returns what may be published about a search, for JSON."""
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
        f"Its mean loss, clipped to {said['score_limit']:g} and with noise, is {loss} "
        f"on {where}; the best of several scores is too optimistic."
    )
    console.print(
        "The number of runs must stay secret: hide the duration of this search from "
        "everybody who sees the model. The files are dated back to the day on which it "
        "began; pass on copies, because a disk also stores when a file really changed."
    )
