"""The guarantee that a file states: its form, which is versioned, and its reader.

The field `privacy` of a model, report or description has this form, which
`privacy.schema.json` beside this file describes for other programs.
"""

import json
import os
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from dpjax import _validate
from dpjax._lazy import VERSION
from dpjax.tables.io._untrusted import number, of_type, well_formed

if TYPE_CHECKING:
    from dpjax.accounting import PrivacyGuarantee

_FORMAT = 1  # of the field; files of earlier versions have none
# The members of `NeighboringRelation`, whose package takes a second to import.
_RELATIONS = "ADD_OR_REMOVE_ONE", "REPLACE_ONE", "REPLACE_SPECIAL"
_MOST_BYTES = 2**26  # of JSON, which takes many times its size in memory


class Statement(NamedTuple):
    """A guarantee as a file states it; earlier files leave the last three unknown."""

    epsilon: float
    delta: float
    relation: str
    description: str
    unit: str = "unknown"
    mechanism: str = "unknown"  # the event of dp_accounting, as text
    dpjax: str = "unknown"  # the version of dpjax that computed the guarantee

    @classmethod
    def of(cls, privacy: "PrivacyGuarantee") -> "Statement":
        """Returns the statement of a guarantee that this version has computed."""
        numbers = float(privacy.epsilon), float(privacy.delta)
        words = privacy.relation.name, privacy.description, privacy.unit.rstrip(",")
        return cls(*numbers, *words, str(privacy.dp_event), VERSION)

    @classmethod
    def read(cls, content: Any) -> "Statement":
        """Returns the statement of the field `privacy` of a file, and checks it."""
        version = of_type(dict, "privacy", content).get("format", 0)
        is_known = type(version) is int and 0 <= version <= _FORMAT
        rule = f"at most {_FORMAT}, or a later version of dpjax must read it"
        _validate.require(is_known, "the format of privacy", version, rule)
        epsilon, delta = (number(name, content[name]) for name in cls._fields[:2])
        _validate.within(0.0, np.inf, epsilon=epsilon)
        _validate.delta(delta)
        names = cls._fields[2:] if version else ("relation", "description")
        texts = {name: of_type(str, name, content[name]) for name in names}
        stated, rule = cls(epsilon, delta, **texts), f"one of {', '.join(_RELATIONS)}"
        is_known = stated.relation in _RELATIONS
        _validate.require(is_known, "relation", stated.relation, rule)
        _validate.require(stated.unit.strip() != "", "unit", stated.unit, "a noun")
        return stated

    def content(self) -> dict[str, Any]:
        """Returns the field `privacy`, for JSON."""
        return {"format": _FORMAT, **self._asdict()}

    def made(self) -> "PrivacyGuarantee":
        """Returns the guarantee, with an `UnsupportedDpEvent`."""
        from dp_accounting import NeighboringRelation, UnsupportedDpEvent

        from dpjax.accounting import PrivacyGuarantee

        relation, event = NeighboringRelation[self.relation], UnsupportedDpEvent()
        return PrivacyGuarantee(*self[:2], relation, event, self.description, self.unit)


def stored_arrays(file: BinaryIO) -> Any:
    """Opens a NumPy archive, perhaps a stranger's; refuses to uncompress or unpickle.

    A few compressed bytes could fill the memory, and objects could run code.
    """
    if not zipfile.is_zipfile(file):
        raise ValueError("it is no NumPy archive, or cut off")
    with zipfile.ZipFile(file) as archive:
        if any(entry.compress_type for entry in archive.infolist()):
            raise ValueError("its entries are compressed")
    file.seek(0)
    return np.load(file, allow_pickle=False)


def read_guarantee(path: str | os.PathLike[str]) -> "PrivacyGuarantee":
    """Returns the guarantee that a file states, without its model or numbers.

    Reading runs no code from the file. The statement has its own format, so that models
    of later formats are read, too. A file can lie: `docs/privacy/output_checks.md` says
    on what you can rely.

    Args:
        path: the path of a `model.npz`, `report.json` or `description.json` that the
            command has written.

    Returns:
        The guarantee. Its `dp_event` is an `UnsupportedDpEvent`, because a file has the
        event only in words; its `unit` is "unknown" if an earlier version wrote it.

    Raises:
        OSError: If there is no such file, or it cannot be read.
        ValueError: If the file states no guarantee or one of a later format, is
            damaged, or has more than 64 MiB of JSON.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "report.json")
        >>> privacy = {"epsilon": 1.0, "delta": 1e-6, "relation": "REPLACE_ONE"}
        >>> _ = path.write_text(json.dumps({"privacy": privacy | {"description": ""}}))
        >>> read_guarantee(path).epsilon
        1.0
    """
    rule = "path must be a file of dpjax that states its guarantee (model.npz, "
    rule += "report.json or description.json)"
    with Path(path).open("rb") as file, well_formed(rule, path):
        content = json.loads(_json_of(file))
        if not isinstance(content, dict) or "privacy" not in content:
            raise ValueError("it has no field privacy")
        return Statement.read(content["privacy"]).made()


def _json_of(file: BinaryIO) -> str | bytes:
    """Returns the JSON of a model or report, which is at most `_MOST_BYTES` long."""
    rule = f"at most {_MOST_BYTES:,}"
    if zipfile.is_zipfile(file):
        with stored_arrays(file) as arrays:
            size = arrays.zip.getinfo("model.npy").file_size
            _validate.require(size <= _MOST_BYTES, "bytes of JSON", size, rule)
            return of_type(str, "model", arrays["model"].item())
    file.seek(0)
    text = file.read(_MOST_BYTES + 1)
    _validate.require(len(text) <= _MOST_BYTES, "bytes of JSON", len(text), rule)
    return text
