"""Plans a run on a table, prices it from public facts, and charges its ledger.

Nothing here looks at a value of a record: the price depends on the number of records,
and the ledger refuses or enters the run before a value is used.
"""

import dataclasses
import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dp_accounting import ComposedDpEvent

from dpjax import _validate
from dpjax._rounding import difference_down
from dpjax.accounting import PrivacyGuarantee
from dpjax.accounting._sample import sample_budget, sample_privacy
from dpjax.datasets import Dataset
from dpjax.solvers.statistics._noisy_mean import one_gaussian
from dpjax.tables import default_delta
from dpjax.tables.cli import _fit, _ledger
from dpjax.tables.cli._fit import Budget, Plan, training_privacy
from dpjax.tables.cli._ranges import Ranges, plan_ranges
from dpjax.tables.cli._release import Release
from dpjax.tables.cli._settings import DescribeSettings, ReleaseOptions, Settings
from dpjax.tables.cli._sources import Table, blank_data


@dataclass(frozen=True, eq=False)
class Run:
    """A run before it begins: budgets, guarantees, plan; every attribute is public."""

    settings: ReleaseOptions
    table: Table | None  # without its cells; None for a public data set
    asked: Budget  # for the file
    own: Budget  # for the records that were read; a sample may spend more
    budget: Budget  # the part of `own` for the model, or the description
    # The guarantee of each release for the records that were read; the releases use
    # disjoint parts of them.
    parts: Mapping[str, PrivacyGuarantee]
    plan: Plan | None = None  # None for a description
    ranges: Ranges | None = None  # the centers and scales to release, if any

    def of_file(self, privacy: PrivacyGuarantee) -> PrivacyGuarantee:
        """Returns the guarantee for the file, given one for the records that were read.

        These may be a random sample, whose secrecy strengthens the guarantee.
        """
        if self.table is None or self.table.sample is None:
            return privacy
        sizes, unit = self.table.sample._asdict(), self.table.unit_words
        return sample_privacy(privacy, **sizes, unit=unit)

    @property
    def method(self) -> str:
        """The name of the method, or of the description."""
        return "Description" if self.plan is None else self.plan.method

    @functools.cached_property
    def released(self) -> dict[str, PrivacyGuarantee]:
        """The guarantee of each part for the file; the ledger is charged these."""
        return {name: self.of_file(part) for name, part in self.parts.items()}

    @functools.cached_property
    def privacy(self) -> PrivacyGuarantee:
        """The guarantee of all releases, on disjoint records, for the file."""
        first, *rest = self.parts.values()
        if not rest:
            return self.of_file(first)
        assert self.table is not None
        events: Any = tuple(part.dp_event for part in (first, *rest))
        joined = PrivacyGuarantee.of(
            max(part.epsilon for part in (first, *rest)),
            max(part.delta for part in (first, *rest)),
            dp_event=ComposedDpEvent(events),  # sequential: an upper bound
            num_samples=len(self.table.is_test),
            unit=self.table.unit_words,
        )
        return self.of_file(joined)

    @property
    def sample(self) -> dict[str, Any] | None:
        """The sizes and budgets of a random sample, for JSON; None without a sample."""
        if self.table is None or self.table.sample is None:
            return None
        return {
            "unit": self.settings.unit,
            "num_records": self.table.sample.num_samples,
            "max_records": self.table.sample.sample_size,
            "budget": self.asked._asdict(),
            "budget_of_sample": self.own._asdict(),
        }


def plan_training(settings: Settings, source: Table | Dataset) -> Run:
    """Plans a training on `source`: its budgets, guarantees and solver's arguments."""
    # Only public facts are used, so the ledger can be charged before a value is read.
    if isinstance(source, Dataset):
        asked = _asked(settings, len(source.features))
        plan = _fit.make_plan(settings, source, asked)
        parts = {"training": training_privacy(plan, source)}
        return Run(settings, None, asked, asked, asked, parts, plan)
    table, ranges, units = source, None, source.units
    rule = "given for a single record, because the default n^-1.1 is 1"
    is_fine = settings.delta is not None or units is not None or table.num_records > 1
    _validate.require(is_fine, "--delta", None, rule)
    asked, own = _budgets(settings, table)
    budget, each = own, table.places_per_unit
    if (share := settings.private_ranges) is not None:
        # The ranges take a share of the budget, and the model has the rest.
        part = Budget(share * own.epsilon, share * own.delta)
        budget = Budget(*map(difference_down, own, part))
        ranges = plan_ranges(table, part)
        table = table.with_ranges(ranges.columns)
    data = blank_data(table)
    plan = _fit.make_plan(settings, data, budget, table.schema, each)
    training = training_privacy(plan, data)
    if units is not None:
        named: Any = {"num_groups": units.num_units, "unit": units.words}
        training = training.for_groups(1, **named)
    if ranges is not None:
        training = ranges.joined(training)
    parts = {"training": training}
    if settings.holdout is not None:
        size, unit = len(data.test_targets), table.unit_words
        parts["evaluation"] = _fit.evaluation_privacy(training, size, unit)
    table = dataclasses.replace(source, columns={})  # cells take much memory
    return Run(settings, table, asked, own, budget, parts, plan, ranges)


def plan_description(settings: DescribeSettings, table: Table) -> Run:
    """Prices a description of a file that was read."""
    asked, own = _budgets(settings, table)
    _, privacy = one_gaussian(*own, table.num_samples, table.unit_words)
    public = dataclasses.replace(table, columns={})
    return Run(settings, public, asked, own, own, {"description": privacy})


def _asked(settings: ReleaseOptions, num_samples: int) -> Budget:
    delta = default_delta(num_samples) if settings.delta is None else settings.delta
    return Budget(settings.epsilon, delta)


def _budgets(settings: ReleaseOptions, table: Table) -> tuple[Budget, Budget]:
    """Returns the budgets of the file, and of the records that were read."""
    sample = table.sample
    asked = _asked(settings, table.num_samples if sample is None else table.num_records)
    own = asked
    if sample is not None:
        own = Budget(*sample_budget(*asked, **sample._asdict()))
    return asked, own


def charge(
    run: Run, release: Release, source: Table | Dataset
) -> tuple[Release, str | None]:
    """Returns the release tied to its run, and the run's id in the --ledger, or None.

    With --checkpoint, a digest of the options and records ties the key to them. With
    --ledger, the run is entered into the ledger, which fails if its cost exceeds the
    limit. A run that resumes has an entry already, which pays for its only release.
    """
    settings, run_folder, paid = run.settings, release.run_folder, None
    options = repr(dataclasses.replace(settings, output=None, checkpoint=None))
    if run_folder is not None:
        records = () if isinstance(source, Dataset) else source.parts()
        parts = itertools.chain([options.encode()], records)
        run_folder = run_folder.bound(release.key, parts)
        release = release._replace(run_folder=run_folder)
    if settings.ledger is None:
        return release, None
    assert not isinstance(source, Dataset)  # `load_public` refuses a ledger
    if run_folder is not None:
        paid = run_folder.paid(options)
        _validate.require(
            paid is not None or not run_folder.has_states(),
            "--checkpoint",
            str(run_folder.path),
            "a folder of the same command, --ledger and all other options included, "
            "or a new one: nothing was spent",
        )
    entry = _ledger.charge(
        settings.ledger,
        run.released,
        source=_ledger.Source(source.name, source.num_records, tuple(source.names)),
        method=run.method,
        unit=settings.unit,
        paid=paid,
    )
    if run_folder is not None:
        run_folder.keep_paid(entry.id, options)
    return release, entry.id
