"""A sample of a file's records or units: how it is drawn while the file is read."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpjax._reservoir import Reservoir, Tags, as_numbers, places_of
from dpjax._tables import Column, joined, read_chunks
from dpjax._texts import TextFormat
from dpjax._types import Key
from dpjax.cli._units import Units, named, units_of


class Sample(NamedTuple):
    """How many records, or units, were drawn, and from how many; both are public."""

    size: int
    num_records: int


class Draw(NamedTuple):
    """How a sample is to be drawn.

    Attributes:
        size: m, the most records; with a unit, the most of its values.
        key: as secret as the key of the noise, which it must not be.
        unit: the column that says whose a record is, if any.
        each: the most records of a unit that count, the first ones.
        listed: all units there are; None: those that occur.
    """

    size: int
    key: Key
    unit: str | None = None
    each: int = 1
    listed: Sequence[str] | None = None

    def read(
        self, path: Path, names: list[str], text_format: TextFormat
    ) -> tuple[dict[str, Column], Units | None, Sample | None]:
        """Reads columns of a file in one pass, and keeps those of the sample.

        Returns:
            The columns, whose they are, and the sample; None if there are no more
            records, or units, than may be drawn, which are then as in the file.
        """
        wanted = [*names, *([] if self.unit is None else [self.unit])]
        tags = Tags(self.key)
        reservoir = Reservoir(self.size, joined, each=self.each)
        units, num_records = set(tags.of_names(self.listed or ())), 0
        for chunk in read_chunks(path, wanted, text_format):
            columns = [chunk[name] for name in wanted]
            numbers = num_records + np.arange(len(columns[0]))
            num_records += len(numbers)
            if self.unit is None:
                reservoir.add([numbers, *columns], tags.following(len(numbers)))
                continue
            found, codes = named(chunk[self.unit])
            own = tags.of_names(found)
            if self.listed is None:
                units.update(own)
            is_unit = np.fromiter((tag in units for tag in own), bool, len(own))
            rows = np.flatnonzero(is_unit[codes])
            columns = [column[rows] for column in (numbers, *columns)]
            reservoir.add(columns, as_numbers(own)[codes[rows]])
        (numbers, *columns), own = reservoir.kept()
        total = num_records if self.unit is None else len(units)
        if total <= self.size:
            rows = np.argsort(numbers)
            whole = {k: x[rows] for k, x in zip(wanted, columns, strict=True)}
            if self.unit is None:
                return whole, None, None
            cells = whole.pop(self.unit)
            found = units_of(self.unit, cells, self.each, self.listed)
            return whole, found, None
        drawn = dict(zip(names, columns, strict=False))
        if self.unit is None:
            return drawn, None, Sample(self.size, total)
        # Places are by the tags of all units; of a list, some may have no record.
        place, rank = places_of(own)
        index_of = {tag: at for at, tag in enumerate(sorted(units)[: self.size])}
        with_records = map(bytes, own[rank == 0].astype(">u8"))
        index = np.array([index_of.get(tag, -1) for tag in with_records], int)
        found = Units(
            column=self.unit,
            size=self.each,
            num_units=self.size,
            index=index[place],
            rank=rank,
            is_listed=self.listed is not None,
        )
        return drawn, found, Sample(self.size, total)
