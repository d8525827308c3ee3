"""A sample of a file's records or units: how it is drawn while the file is read."""

from collections.abc import Container, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpjax._types import Key
from dpjax.tables.cli._units import Units, named, units_of
from dpjax.tables.io._sample import Reservoir, Tags, order_of
from dpjax.tables.io._tables import Column, joined, read_chunks
from dpjax.tables.io._texts import TextFormat, float32_of

# Of a sample, by default. A rule and no measurement: on a machine with more memory the
# same command has the same guarantee.
MOST_CELLS = 10**8


class Sample(NamedTuple):
    """Counts the records, or units, drawn, and those of the file; both are public."""

    sample_size: int
    num_samples: int


def default_size(num_columns: int, each: int) -> int:
    """Returns how many records, or units of `each`, have `MOST_CELLS` at most."""
    return max(1, MOST_CELLS // (num_columns * each))


class Draw(NamedTuple):
    """Plans how a sample is drawn.

    Attributes:
        size: the most records; with a unit, the most of its values. None: those that
            have `MOST_CELLS` in the columns which are read.
        key: as secret as the key of the noise, which it must not be.
        unit: the column that says whose a record is, if any.
        each: the most records of a unit that count, the first ones.
        listed: all units there are; None: those that occur.
    """

    size: int | None
    key: Key
    unit: str | None = None
    each: int = 1
    listed: Sequence[str] | None = None

    def read(
        self,
        path: Path,
        names: list[str],
        text_format: TextFormat,
        *,
        numbers: Container[str] = (),
    ) -> tuple[dict[str, Column], Units | None, Sample | None]:
        """Reads columns of a file in one pass, and keeps those of the sample.

        Args:
            path: the file.
            names: the columns.
            text_format: how text is encoded, and numbers are written.
            numbers: columns that are kept in float32, a fraction of what text takes.

        Returns:
            The columns, whose they are, and the sample; None if there are no more
            records, or units, than may be drawn, which are then as in the file.
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
            if sample is None:
                columns = [column[np.argsort(places)] for column in columns]
        drawn = dict(zip(wanted, columns, strict=True))
        if self.unit is None:
            return drawn, None, sample
        order = None
        if sample is not None:  # by the tags, as a place must not tell of a name
            every = [*units]
            order = [every[i] for i in order_of(tags.of_names(every))[:size]]
        cells = drawn.pop(self.unit)
        return drawn, units_of(self.unit, cells, self.each, self.listed, order), sample
