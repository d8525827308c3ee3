"""What a run on a user's file costs: known of its number of records, spent before."""

import dataclasses
from pathlib import Path
from typing import Any, TypeVar

import jax

from dpjax import _validate
from dpjax._types import Key
from dpjax.accounting import PrivacyGuarantee
from dpjax.accounting._group import group_budget
from dpjax.accounting._sample import sample_budget
from dpjax.datasets import Dataset
from dpjax.tables import default_delta
from dpjax.tables.cli import _ledger
from dpjax.tables.cli._evaluation import evaluation_privacy
from dpjax.tables.cli._losses import link_of
from dpjax.tables.cli._plan import Budget, Plan, make_plan, split_budget
from dpjax.tables.cli._ranges import Ranges, release_ranges
from dpjax.tables.cli._run_folder import RunFolder
from dpjax.tables.cli._runs import training_privacy
from dpjax.tables.cli._settings import ReleaseOptions, Settings
from dpjax.tables.cli._sources import Table, encode_table
from dpjax.tables.cli._units import privacy_of_units
from dpjax.tables.io._tables import column_names

AnySettings = TypeVar("AnySettings", bound=ReleaseOptions)
Prices = dict[str, PrivacyGuarantee]  # by the part of the records


def planned(settings: Settings, data: Dataset, table: Table | None) -> Plan:
    """Returns the plan.

    Where neighbors differ in all records of a unit, its budget is one for a record
    that keeps the budget for a unit.

    Raises:
        ValueError: as `make_plan`.
    """
    if table is not None and table.units is not None:
        delta = settings.delta
        if delta is None:
            delta = default_delta(table.num_samples)
        each = group_budget(settings.epsilon, delta, table.units.size)
        settings = dataclasses.replace(settings, epsilon=each[0], delta=each[1])
    return make_plan(settings, data)


def on_sample(
    settings: AnySettings, table: Table
) -> tuple[AnySettings, dict[str, Any] | None]:
    """Returns the settings of a run on these records, with all that it may spend.

    That is more than was asked where they are a sample, and is then also reported.

    Raises:
        ValueError: If the table is so much larger that the sample's delta would be 1.
    """
    sample, delta = table.sample, settings.delta
    if sample is None:
        return settings, None
    if delta is None:
        delta = default_delta(sample.num_samples)
    asked = Budget(settings.epsilon, delta)
    own = Budget(*sample_budget(*asked, **sample._asdict()))
    terms = {
        "unit": settings.unit,
        "num_records": sample.num_samples,
        "max_records": sample.sample_size,
        "budget": asked._asdict(),
        "budget_of_sample": own._asdict(),
    }
    return dataclasses.replace(settings, **own._asdict()), terms


def with_ranges(
    settings: Settings, table: Table, *, key: Key
) -> tuple[Table, Ranges | None]:
    """Releases privately what the schema leaves open, if that is asked for."""
    if settings.private_ranges is None:
        return table, None
    cost, _ = split_budget(settings, table.num_samples)
    ranges = release_ranges(
        table,
        key=key,
        epsilon=cost.epsilon,
        delta=cost.delta,
        is_centered=link_of(settings.loss) != "log",
        may_bend=settings.may_bend,
    )
    return table.with_ranges(ranges.columns), ranges


def spend(
    settings: Settings, table: Table, run_folder: RunFolder | None
) -> tuple[Prices, str | None]:
    """Enters a run into its ledger, before a value of a record is used.

    Returns:
        What the run will release of each part of the records, and the entry's id.

    Raises:
        ValueError: as `enter`; nothing is spent.
    """
    if settings.ledger is None:
        return {}, None
    plan, parts = prices(settings, table)
    name = plan.method
    return parts, enter(settings, table, parts, method=name, run_folder=run_folder).id


def enter(
    settings: ReleaseOptions,
    table: Table,
    parts: Prices,
    *,
    method: str,
    run_folder: RunFolder | None,
) -> _ledger.Entry:
    """Enters what is released of each part of the records into --ledger.

    A run that goes on from its folder, with the same options, is there already: what
    was entered pays for one release, which has not been.

    Raises:
        ValueError: If there is no ledger, no room in it, it is of another table, or
            the folder holds another run, which could not go on; nothing is spent.
    """
    assert settings.ledger is not None
    options = repr(dataclasses.replace(settings, output=None, checkpoint=None))
    paid = None
    if run_folder is not None:
        paid = run_folder.paid(options)
        _validate.require(
            paid is not None or not run_folder.has_states(),
            "--checkpoint",
            str(run_folder.path),
            "a folder of the same command, --ledger and all other options included, "
            "or a new one: nothing was spent",
        )
    names = column_names(Path(settings.source), settings.text_format)
    entry = _ledger.charge(
        settings.ledger,
        parts,
        source=_ledger.Source(table.name, table.num_records, tuple(names)),
        method=method,
        unit=settings.unit,
        paid=paid,
    )
    if run_folder is not None:
        run_folder.keep_paid(entry.id, options)
    return entry


def prices(settings: Settings, table: Table) -> tuple[Plan, Prices]:
    """Returns a run's plan, and what it will release of each part of the records.

    What is asked is a table of as many records without anything in them.
    """
    blank, ranges = with_ranges(settings, table.blank(), key=jax.random.key(0))
    data = encode_table(blank)
    plan = planned(settings, data, table)
    training = privacy_of_units(training_privacy(plan, data), table.units)
    if ranges is not None:
        training = ranges.joined(training)
    parts = {"training": training}
    if settings.holdout is not None:
        parts["evaluation"] = evaluation_privacy(data, training, table.units)
    return plan, {name: table.protected(part) for name, part in parts.items()}
