"""Reads the records of a user's file, perhaps samples them, and encodes them."""

import dataclasses
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpjax import _validate, datasets
from dpjax._types import Key
from dpjax.datasets import Dataset, Numeric
from dpjax.datasets._dataset import PUBLIC_SETS, encode
from dpjax.tables.cli import _options, _schema
from dpjax.tables.cli._curator import guess_names, schema_text
from dpjax.tables.cli._settings import AMOUNTS, Settings, TextOptions, link_of
from dpjax.tables.cli._terminal import SchemaNeeded
from dpjax.tables.cli._units import Units, named, read_names, units_of
from dpjax.tables.columns._kinds import dates_of
from dpjax.tables.io._sample import Reservoir, Tags, order_of
from dpjax.tables.io._tables import Column, column_names, joined, read_chunks
from dpjax.tables.io._texts import TextFormat, Texts, float32_of, is_missing, text_of
from dpjax.tables.models._terms import bending_features

_FEWEST = 20  # records that --model additive needs
_PUBLIC_SEED = 2021  # splits training and test records
# The most cells of a sample by default. It does not depend on the machine's memory, so
# the same command has the same guarantee everywhere.
MOST_CELLS = 10**8


class Sample(NamedTuple):
    """The numbers of records, or units, in the sample and the file; both are public."""

    sample_size: int
    num_samples: int


def default_size(num_columns: int, each: int) -> int:
    """Returns the most records, or units of `each` records, within `MOST_CELLS`."""
    return max(1, MOST_CELLS // (num_columns * each))


class Draw(NamedTuple):
    """The plan of how a sample is drawn."""

    size: int | None  # the most records, or units; None: `default_size`
    key: Key  # as secret as the key of the noise, and another one
    unit: str | None = None  # the column with the names of units
    each: int = 1  # only this many records of a unit count, the first ones
    listed: Sequence[str] | None = None  # all units; None: the names that occur

    def read(
        self,
        path: Path,
        names: list[str],  # of the columns to read
        text_format: TextFormat,
        *,
        numbers: Container[str] = (),  # kept in float32, which needs less memory
    ) -> tuple[dict[str, Column], Units | None, Sample | None]:
        """Reads columns of a file in one pass, and keeps the records of the sample.

        Returns cells by column, units of privacy (None without `self.unit`), and the
        sizes of sample and file. The last is None if there are at most `self.size`
        records or units: then all are read, in the file's order.
        """
        wanted = [*names, *([] if self.unit is None else [self.unit])]
        tags = Tags(self.key)
        size = self.size or default_size(len(wanted), self.each)
        reservoir = Reservoir(size, joined, each=self.each)
        units, num_records = set(self.listed or ()), 0
        for chunk in read_chunks(path, wanted, text_format):
            columns = [
                float32_of(chunk[name]) if name in numbers else chunk[name]
                for name in wanted
            ]
            places = num_records + np.arange(len(columns[0]))
            num_records += len(places)
            if self.unit is None:
                reservoir.add([places, *columns], tags.following(len(places)))
                continue
            distinct, codes = named(chunk[self.unit])
            if self.listed is None:
                units.update(distinct)
            is_unit = np.fromiter((x in units for x in distinct), bool, len(distinct))
            rows = np.flatnonzero(is_unit[codes])
            columns = [column[rows] for column in (places, *columns)]
            reservoir.add(columns, tags.of_names(distinct)[codes[rows]])
        total = num_records if self.unit is None else len(units)
        sample = Sample(size, total) if total > size else None
        if sample is None and self.unit is None:
            _, *columns = reservoir.all()
        else:
            places, *columns = reservoir.records()
            if sample is None:  # back to the order of the file
                columns = [column[np.argsort(places)] for column in columns]
        drawn = dict(zip(wanted, columns, strict=True))
        if self.unit is None:
            return drawn, None, sample
        order = None
        if sample is not None:  # by tags: a place must not reveal a name
            every = [*units]
            order = [every[i] for i in order_of(tags.of_names(every))[:size]]
        cells = drawn.pop(self.unit)
        return drawn, units_of(self.unit, cells, self.each, self.listed, order), sample


@dataclass(frozen=True, eq=False)
class Table:
    """A user's file, read but not yet encoded."""

    name: str
    columns: Mapping[str, Column]  # of the schema, the target and the bounded columns
    schema: _schema.Schema
    target: str
    is_test: np.ndarray  # whether each record, or unit, is held out for testing
    units: Units | None = None  # if neighbors differ in all records of a unit
    sample: Sample | None = None  # None if it has all records of the file
    names: Sequence[str] = ()  # of all columns of the file

    @property
    def num_samples(self) -> int:
        """The number of records, or units, to train on."""
        return int(np.sum(~self.is_test))

    @property
    def num_records(self) -> int:
        """The number of records, or units, of the file."""
        return len(self.is_test) if self.sample is None else self.sample.num_samples

    @property
    def unit_words(self) -> str:
        """The difference between neighboring tables, in words."""
        return "record" if self.units is None else self.units.words

    @property
    def places_per_unit(self) -> int:
        """The number of records of each unit that count; 1 without units."""
        return 1 if self.units is None else self.units.size

    def by_unit(self, units: Units) -> "Table":
        """Returns the table with `units`, none of them held out."""
        is_test = np.zeros(units.num_units, bool)
        return dataclasses.replace(self, units=units, is_test=is_test)

    def parts(self) -> Iterator[bytes]:
        """Yields the bytes of all cells and public facts, for a digest of the table."""
        # A run with --checkpoint resumes only if the digest is the same.
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
        """Returns the table with a share of its records (or units) held out for tests.

        A permutation from a public seed chooses them, because a table may be sorted.
        """
        words, size = "records" if self.units is None else "units", len(self.is_test)
        num_held_out = round(share * size)
        rule = f"a share that holds out and leaves 10 of {size} {words} or more"
        _validate.require(10 <= num_held_out <= size - 10, "--holdout", share, rule)
        order = np.random.default_rng(_PUBLIC_SEED).permutation(size)
        return dataclasses.replace(self, is_test=order < num_held_out)

    def trained(self, rows: np.ndarray) -> np.ndarray:
        """Returns the rows to train on; with units their places, zero where empty."""
        if self.units is None:
            return rows[~self.is_test]
        return self.units.placed(rows, ~self.is_test, self.units.size)

    def open_columns(self) -> list[str]:
        """Returns the columns of numbers without center and scale, the target last."""
        kinds = {**self.schema.columns, self.target: self.schema.target}
        return [name for name, kind in kinds.items() if kind is None]

    def with_ranges(self, ranges: Mapping[str, Numeric]) -> "Table":
        """Returns the table with centers and scales where its schema has none.

        `ranges` has them by column. A feature is left out if it has none in either.
        """
        columns = {
            name: ranges.get(name, kind)
            for name, kind in self.schema.columns.items()
            if name in ranges or kind is not None
        }
        target = self.schema.target
        if target is None:
            target = _schema.for_largest(ranges[self.target], self.schema.exposure)
        schema = dataclasses.replace(self.schema, columns=columns, target=target)
        return dataclasses.replace(self, schema=schema)


def load_public(name: str, settings: Settings) -> Dataset:
    """Returns a public data set; raises if an option is given that only files have."""
    own = "ledger", "schema", "target", "private_ranges", "holdout", "unit"
    own += ("max_records", *_options.declared(TextOptions))
    for option in own:
        settings.require(option, False, f"left out with {name}, which has its own")
    data = datasets.load(name)
    _check_model(settings, data.schema, len(data.features))
    return data


def read_private(settings: Settings, key: Key) -> Table:
    """Returns the `Table` of a user's file for a training, with its schema checked.

    A share --holdout of the records is marked for tests. If the file has more records
    than --max-records allows, `key` draws a sample. No value of a cell raises.
    """
    path, text_format = Path(settings.source), settings.text_format
    schema, target = settings.schema, settings.target
    link = link_of(settings.loss) if settings.loss else None
    listed = settings.unit_names and read_names(settings.unit_names)
    rule = f"a file, or one of {', '.join(PUBLIC_SETS)}"
    _validate.require(path.exists(), "DATA", str(path), rule)
    names = column_names(path, text_format)
    _schema.check_target(target, names)
    if schema is None:
        raise SchemaNeeded(
            f"--schema must be given for a file, to declare what is public in {path}. "
            "Fill in this template:",
            schema_text(guess_names(path, names), target=target, link=link),
        )
    is_open = settings.private_ranges is not None
    declared = _schema.read_schema(schema, link=link, allows_empty=is_open)
    left = [k for k, v in declared.columns.items() if v == _schema.UNFILLED]
    rule = f"filled in: the categories of these columns are still {_schema.FILL_IN}"
    _validate.require(not left, "--schema", left, rule)
    exposure = None if declared.link == "log" else declared.exposure
    rule = f"without [exposure], which is left out without --loss {AMOUNTS}"
    _validate.require(exposure is None, "--schema", exposure, rule)
    target = _schema.check_columns(declared, target, path, names)
    if target is None:
        raise ValueError(
            f"--target must be given for a file: a column of {names}, unless [target] "
            "of the schema has column."
        )
    unit, each = settings.unit, settings.each
    draw = Draw(settings.max_records, key, unit, each, listed)
    table = read_records(path, draw, declared, target, names, text_format)
    if settings.holdout is not None:
        table = table.held_out(settings.holdout)
    _check_model(settings, declared.columns, table.num_samples)
    return table


def read_records(
    path: Path,
    draw: Draw,  # plans the sample
    schema: _schema.Schema,
    target: str,  # "" if nothing is predicted
    names: list[str],  # of all columns of the file
    text_format: TextFormat,
    numbers: Container[str] = (),  # columns to convert to float32
) -> Table:
    """Returns a file's `Table`, for a training or (without a target) a description.

    It has the cells in the columns of the schema and the target. If there are more
    records (or units) than `draw` allows, it has a random sample of them.
    """
    used = [*schema.columns, *([target] if target else []), *schema.bounded]
    rule = f"a column of {names} that is neither a feature nor the target"
    is_fine = draw.unit is None or (draw.unit in names and draw.unit not in used)
    _validate.require(is_fine, "--unit", draw.unit, rule)
    form = dataclasses.replace(text_format, dates=dates_of(schema.columns))
    columns, units, sample = draw.read(path, used, form, numbers=numbers)
    num_records = len(columns[used[0]])
    # With a public list of units, whether any of them has a record is private.
    is_fine = num_records > 0 or draw.listed is not None
    _validate.require(is_fine, "DATA", str(path), "a file with at least one record")
    is_test = np.zeros(num_records, bool)
    table = Table(path.name, columns, schema, target, is_test, None, sample, names)
    return table if units is None else table.by_unit(units)


def _check_model(
    settings: Settings, columns: Mapping[str, _schema.Kind], num_records: int
) -> None:
    """Checks that --model additive has enough records and a column of numbers."""
    # A column without declared range holds numbers.
    closed: Any = {name: kind or Numeric() for name, kind in columns.items()}
    for is_fine, where in (
        (num_records >= _FEWEST, f"below {_FEWEST} records, of {num_records}"),
        (len(bending_features(closed)) > 0, "where no column is one of numbers"),
    ):
        is_fine |= settings.model != "additive"
        settings.require("model", is_fine, f"linear or left out {where}")


def encode_table(table: Table) -> Dataset:
    """Returns a table's features and targets, encoded by its schema, for the solvers.

    The last feature is an intercept of ones. A number is standardized as the schema
    says; a cell without a number is at the center. In classification, positive values
    become +1 and any other value -1, or each class its index. A record without a
    target, or in none of the classes, has weight zero.
    """
    data = blank_data(table)
    target: Any = table.schema.target
    cells = table.columns[table.target]
    features = np.zeros((len(cells), 0), np.float32)
    if data.schema:  # too small a budget for ranges may leave out all
        features, _ = encode(table.columns, data.schema)
    features = np.hstack([features, np.ones((len(features), 1), np.float32)])
    has_target, is_class = target.is_read(cells), table.schema.link == "softmax"
    is_label = bool(target.categories) and not is_class
    if target.categories:
        targets = target.indices(cells) if is_class else 2 * has_target - 1
        targets = targets.astype(np.float32)
    else:
        targets = target.encode(cells)[:, 0]
    weights, exposures = (
        None if bound is None else bound.shares(table.columns[bound.column])
        for bound in (table.schema.weight, table.schema.exposure)
    )
    is_test, units, trained = table.is_test, table.units, table.trained
    if is_label:  # any text is a label, and what is not positive is negative
        texts, codes = cells.tolist(), slice(None)
        if isinstance(cells, Texts):
            texts, codes = cells.distinct
        is_text = [not is_missing(text_of(text)) for text in texts]
        has_target = np.array(is_text, bool)[codes]
    weights = np.where(has_target, 1.0 if weights is None else weights, 0.0)
    weights = weights.astype(np.float32)  # a unit's empty places have zero

    def tested(rows: np.ndarray) -> np.ndarray:
        # Only a unit's first record is scored, so a unit costs as much as a record.
        return rows[is_test] if units is None else units.placed(rows, is_test, 1)

    return dataclasses.replace(
        data,
        features=trained(features),
        targets=trained(targets),
        test_features=tested(features),
        test_targets=tested(np.where(has_target, targets, np.float32(np.nan))),
        weights=trained(weights),
        exposures=None if exposures is None else trained(exposures),
        test_exposures=None if exposures is None else tested(exposures),
    )


def blank_data(table: Table) -> Dataset:
    """Returns the data of `encode_table` with zeros in place of the records' values.

    The zeros take no memory: a run is planned from their shapes.
    """
    declared: Any = dict(table.schema.columns)
    target: Any = table.schema.target
    rule = "complete, with a center and scale of each column"
    _validate.require(not table.open_columns(), "schema", table.open_columns(), rule)
    names = [name for key, kind in declared.items() for name in kind.names(key)]
    if table.schema.link == "softmax":
        unit = f"{len(target.categories)} classes"
    elif target.categories:
        unit = f"+1 for {' or '.join(target.categories)}"
    else:
        unit = table.target + (f" / {target.scale:g}" if target.scale != 1 else "")
    num_tested = int(np.sum(table.is_test))
    rows, tested = (
        np.broadcast_to(np.float32(0), (size, len(names) + 1))
        for size in (table.num_samples * table.places_per_unit, num_tested)
    )
    is_exposed = table.schema.exposure is not None
    return Dataset(
        name=table.name,
        task="classification" if target.categories else "regression",
        feature_names=(*names, "intercept"),
        features=rows,
        targets=rows[:, 0],
        test_features=tested,
        test_targets=tested[:, 0],
        target_unit=unit,
        licence="not stated",
        source=table.name,
        schema=declared,
        weights=rows[:, 0],
        exposures=rows[:, 0] if is_exposed else None,
        test_exposures=tested[:, 0] if is_exposed else None,
    )
