"""Where the records come from: a data set by its name, or a user's file."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpjax import _validate, datasets
from dpjax.accounting import PrivacyGuarantee
from dpjax.accounting._sample_privacy import sample_privacy
from dpjax.datasets import Categorical, Dataset, Numeric
from dpjax.datasets._dataset import PUBLIC_SETS
from dpjax.tables.cli._guesses import FILL_IN, guess_names, schema_text
from dpjax.tables.cli._losses import AMOUNTS
from dpjax.tables.cli._sample import Draw, Sample
from dpjax.tables.cli._schema import Schema, for_largest, read_schema
from dpjax.tables.cli._terminal import SchemaNeeded
from dpjax.tables.cli._units import Units, check_unit
from dpjax.tables.columns._kinds import BoundedColumn
from dpjax.tables.io._tables import Column, column_names
from dpjax.tables.io._texts import PLAIN, TextFormat, Texts, is_missing, text_of
from dpjax.tables.models._terms import Link

_PUBLIC_SEED = 2021  # of the split into training and test records
Kind = Numeric | Categorical | BoundedColumn | None  # None: of an open range


@dataclass(frozen=True, eq=False)
class Table:
    """A user's file, read but not yet encoded.

    Attributes:
        name: of the file.
        columns: the columns that the schema names, and the target's, each (n,).
        schema: what is public about them.
        target: the target's name.
        is_test: which records are held out for testing, shape (n,); with units, which
            of them are, shape (num_units,).
        units: whose the records are, if neighbors differ in all records of one.
        sample: of which table they are a sample, if they are none as a whole.
    """

    name: str
    columns: Mapping[str, Column]
    schema: Schema
    target: str
    is_test: np.ndarray
    units: Units | None = None
    sample: Sample | None = None

    @property
    def num_samples(self) -> int:
        """The number of records, or units, to train on."""
        return int(np.sum(~self.is_test))

    @property
    def num_records(self) -> int:
        """The number of records, or units, of the file."""
        return len(self.is_test) if self.sample is None else self.sample.num_samples

    def protected(self, privacy: PrivacyGuarantee) -> PrivacyGuarantee:
        """Returns the guarantee for the file, from that for these records.

        For disjoint records the largest guarantee holds for all, as without a sample.
        """
        if self.sample is None:
            return privacy
        unit = "record" if self.units is None else self.units.words
        return sample_privacy(privacy, **self.sample._asdict(), unit=unit)

    def restated(self, part: Any) -> Any:
        """Returns a release, if there is one, with its guarantee for the file."""
        return part and dataclasses.replace(part, privacy=self.protected(part.privacy))

    def by_unit(self, units: Units) -> "Table":
        """Returns the table with records that are the units'."""
        rule = "a file that stays as it is while it is read"
        is_same = len(units.index) == len(self.is_test)
        _validate.require(is_same, "DATA", self.name, rule)
        is_test = np.zeros(units.num_units, bool)
        return dataclasses.replace(self, units=units, is_test=is_test)

    def parts(self) -> Iterator[bytes]:
        """Yields all that a run reads of the file, for a digest."""
        units = self.units
        report = units and units.report()
        public = self.schema, self.target, [*self.columns], report, self.sample
        yield repr(public).encode()
        columns = [self.is_test] if units is None else [units.index, units.rank]
        for array in (*self.columns.values(), *columns):
            if isinstance(array, Texts):
                yield from array.parts()
                continue
            yield repr(array.dtype).encode()
            is_plain = array.dtype.kind not in "OT"
            yield array.tobytes() if is_plain else repr(array.tolist()).encode()

    def held_out(self, share: float) -> "Table":
        """Returns the table with a share of its records held out for testing.

        Which, a public seed and the number of records say: a table may be sorted.

        Raises:
            ValueError: If fewer than ten are held out or left.
        """
        words = "records" if self.units is None else "units"
        is_test = held_out(len(self.is_test), share, words)
        return dataclasses.replace(self, is_test=is_test)

    def blank(self) -> "Table":
        """Returns a table of as many records, in which nothing is of the records."""
        nothing = np.zeros(len(self.columns[self.target]))
        return dataclasses.replace(self, columns=dict.fromkeys(self.columns, nothing))

    def open_columns(self) -> list[str]:
        """Returns the columns of numbers whose center and scale the schema leaves open.

        The target comes last.
        """
        kinds = {**self.schema.columns, self.target: self.schema.target}
        return [name for name, kind in kinds.items() if kind is None]

    def with_ranges(self, ranges: Mapping[str, Numeric]) -> "Table":
        """Returns the table with what was open filled in, or else left out."""
        columns = {
            name: ranges.get(name, kind)
            for name, kind in self.schema.columns.items()
            if name in ranges or kind is not None
        }
        target = self.schema.target
        if target is None:
            target = for_largest(ranges[self.target], self.schema.exposure)
        schema = dataclasses.replace(self.schema, columns=columns, target=target)
        return dataclasses.replace(self, schema=schema)


def held_out(num_records: int, share: float, words: str = "records") -> np.ndarray:
    """Returns which records are held out, shape (n,), by a public seed and n alone.

    Raises:
        ValueError: If fewer than ten are held out or left.
    """
    num_held_out = round(share * num_records)
    rule = f"a share that holds out and leaves 10 of {num_records} {words} or more"
    _validate.require(10 <= num_held_out <= num_records - 10, "--holdout", share, rule)
    order = np.random.default_rng(_PUBLIC_SEED).permutation(num_records)
    return order < num_held_out


def read_table(
    path: Path,
    *,
    schema: Path | None,
    target: str | None,
    link: Link,
    allows_empty: bool = False,
    least: int = 1,
    text_format: TextFormat = PLAIN,
    draw: Draw,
) -> Table:
    """Reads the columns of a user's file that its schema names.

    Args:
        path: a CSV, Parquet or NPZ file, or a folder of such.
        schema: the file that says what is public about each column.
        target: the column to predict.
        link: of the loss: its target is one of two classes, an amount, or a number.
        allows_empty: whether the schema may leave centers and scales open.
        least: how many records there must be: 0 where their number is private.
        text_format: how text is encoded, and numbers are written.
        draw: how a sample is drawn, if the file has more records.

    Raises:
        SchemaNeeded: if schema is None.
        ValueError: If a file, the schema or a name in it is wrong; never because of the
            values in a record.
    """
    _validate.require(
        path.exists(), "DATA", str(path), f"a file, or one of {', '.join(PUBLIC_SETS)}"
    )
    names = column_names(path, text_format)
    _check_target(target, names)
    if schema is None:
        raise SchemaNeeded(
            f"--schema must be given for a file, to declare what is public in {path}. "
            "Fill in this template:",
            schema_text(guess_names(path, names), target=target, link=link),
        )
    declared = read_schema(schema, link=link, allows_empty=allows_empty)
    left = [k for k, v in declared.columns.items() if v == Categorical((FILL_IN,))]
    rule = f"filled in: the categories of these columns are still {FILL_IN}"
    _validate.require(not left, "--schema", left, rule)
    exposure = None if link == "log" else declared.exposure
    rule = f"without [exposure], which is left out without --loss {AMOUNTS}"
    _validate.require(exposure is None, "--schema", exposure, rule)
    target = _target(declared, target, path, names)
    if target is None:
        raise ValueError(
            f"--target must be given for a file: a column of {names}. Or the schema's "
            "[target] says column."
        )
    used = [*declared.columns, target, *declared.bounded]
    check_unit(draw.unit, names, used)
    columns, units, sample = draw.read(path, used, text_format)
    num_records = len(columns[target])
    rule = "a file with at least one record"
    _validate.require(num_records >= least, "DATA", str(path), rule)
    is_test = np.zeros(num_records, bool)
    table = Table(path.name, columns, declared, target, is_test, sample=sample)
    return table if units is None else table.by_unit(units)


def declared_columns(
    path: Path, *, schema: Path, target: str | None, text_format: TextFormat = PLAIN
) -> tuple[dict[str, Kind], str | None]:
    """Returns how each column is declared, whatever the task, and the target's name.

    Raises:
        ValueError: as `read_table`; no record is looked at.
    """
    names = column_names(path, text_format)
    _check_target(target, names)
    declared = read_schema(schema, link=None, allows_empty=True)
    target = _target(declared, target, path, names)
    kinds: dict[str, Kind] = {**declared.columns, **declared.bounded}
    if target is not None:
        kinds[target] = declared.target
    return kinds, target


def _check_target(target: str | None, names: list[str]) -> None:
    is_fine = target is None or target in names
    _validate.require(is_fine, "--target", target, f"a column of {names}")


def _target(
    declared: Schema, target: str | None, path: Path, names: list[str]
) -> str | None:
    """Returns the name of the target, and checks that the file has what is declared."""
    unknown = [
        name for name in (*declared.columns, *declared.bounded) if name not in names
    ]
    _validate.require(
        not unknown, "--schema", unknown, f"made of columns of {path.name} ({names})"
    )
    stated = declared.target_column
    if stated is not None:
        rule = f"made of columns of {path.name} ({names})"
        _validate.require(stated in names, "--schema", stated, rule)
        rule = f"left out, or {stated!r}, as column in [target] of the schema says"
        _validate.require(target in (None, stated), "--target", target, rule)
    target = target or stated
    rule = "a column that is no feature: [columns] of the schema names it"
    _validate.require(target not in declared.columns, "--target", target, rule)
    both = [x.column for x in (declared.exposure, declared.weight) if x]
    used = [*declared.columns, target, *both]
    twice = [name for name in both if used.count(name) > 1]
    rule = "made of columns that have one use each: as a feature, target, exposure or"
    _validate.require(not twice, "--schema", twice, f"{rule} weight")
    return target


def _has_target(kind: Numeric | Categorical, column: Column) -> np.ndarray:
    """Returns which cells of the target hold a number, or any text of a label."""
    if not kind.categories:
        return kind.is_read(column)
    cells, codes = column.tolist(), slice(None)
    if isinstance(column, Texts):
        cells, codes = column.distinct
    return np.array([not is_missing(text_of(cell)) for cell in cells], bool)[codes]


def encode_table(table: Table) -> Dataset:
    """Encodes a table by its schema; the last feature is an intercept of ones.

    A number is standardized as the schema says, and one that does not parse lies at the
    center; in classification, the positive value becomes +1 and anything else -1. A
    record whose target is missing has the weight zero.

    Raises:
        ValueError: If the schema leaves a center and scale open.
    """
    declared = {k: v for k, v in table.schema.columns.items() if v is not None}
    target = table.schema.target
    if target is None or len(declared) < len(table.schema.columns):
        raise ValueError(f"schema must be closed, got {table.open_columns()} open.")
    num_records = len(table.columns[table.target])
    features, feature_names = np.zeros((num_records, 0), np.float32), ()
    if declared:  # all may have been left out, where the budget has no share for ranges
        features, feature_names = datasets.encode(table.columns, declared)
    features = np.hstack([features, np.ones((len(features), 1), np.float32)])
    targets = target.encode(table.columns[table.target])[:, 0]
    if target.categories:
        targets, unit = 2 * targets - 1, f"+1 for {target.categories[0]}"
    else:
        scale = target.scale
        unit = table.target if scale == 1 else f"{table.target} / {scale:g}"
    weights, exposures = (
        None if bound is None else bound.shares(table.columns[bound.column])
        for bound in (table.schema.weight, table.schema.exposure)
    )
    is_test, units = table.is_test, table.units
    has_target = _has_target(target, table.columns[table.target])
    weights = np.where(has_target, 1.0 if weights is None else weights, 0.0)
    weights = weights.astype(np.float32)  # that of a place without a record is zero

    def trained(rows: np.ndarray) -> np.ndarray:
        if units is None:
            return rows[~is_test]
        return units.placed(rows, ~is_test, units.size)

    def tested(rows: np.ndarray) -> np.ndarray:
        # Of a unit the first record, so that a unit costs what a record does.
        return rows[is_test] if units is None else units.placed(rows, is_test, 1)

    return Dataset(
        name=table.name,
        task="classification" if target.categories else "regression",
        feature_names=(*feature_names, "intercept"),
        features=trained(features),
        targets=trained(targets),
        test_features=tested(features),
        test_targets=tested(np.where(has_target, targets, np.float32(np.nan))),
        target_unit=unit,
        licence="not stated",
        source=table.name,
        schema=declared,
        weights=trained(weights),
        exposures=None if exposures is None else trained(exposures),
        test_exposures=None if exposures is None else tested(exposures),
    )
