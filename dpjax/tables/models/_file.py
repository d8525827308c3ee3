"""The file of a model, a NumPy archive of numbers and one JSON text.

The entry `params` has a weight for each feature, shape (d,), and `heights`, shape (k,
m), the heights of k curves at m knots. The entry `model` is a JSON text with `format`,
the version of this format; `columns`, in order, each with center and scale or its
categories; `knots`, m numbers in scales from the center; and `curves`, the names of the
k features with a curve. In a linear model k = m = 0. A model with intervals also has
the `standard_errors` of params, shape (d,), and their `correlations`, shape (d, d),
which readers of the file may ignore.

Reading the file runs no code, because no entry may have Python objects.
"""

import dataclasses
import io
import json
import math
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from dpjax import _validate
from dpjax.tables.columns._kinds import BoundedColumn, Categorical, Numeric
from dpjax.tables.io._untrusted import number, of_type
from dpjax.tables.models._model import Model
from dpjax.tables.models._terms import Statement, Terms

_FORMAT = 2
# The members of `NeighboringRelation`, listed here because its package takes a second
# to import.
_RELATIONS = "ADD_OR_REMOVE_ONE", "REPLACE_ONE", "REPLACE_SPECIAL"
_ERRORS = "standard_errors", "correlations"  # entries that a file may lack


def model_file(model: Model) -> bytes:
    """Returns the content of a model's file, which `load_model` reads."""
    terms, names = Terms.of(model.params), model.feature_names
    content = {
        "format": _FORMAT,
        "versions": dict(model.versions or {}),
        "data": model.data,
        "method": model.method,
        "link": model.link,
        "exposure": model.exposure and dataclasses.asdict(model.exposure),
        "columns": {name: kind.declared() for name, kind in model.columns.items()},
        "knots": list(terms.knots),
        "curves": [names[index] for index in terms.smooth],
        "target": {
            "name": model.target_name,
            "unit": model.target_unit,
            **model.target.declared(),
        },
        "feature_names": names,
        "privacy": {
            "epsilon": float(model.privacy.epsilon),
            "delta": float(model.privacy.delta),
            "relation": model.privacy.relation.name,
            "description": model.privacy.description,
        },
    }
    text, file = np.array(json.dumps(content, ensure_ascii=False)), io.BytesIO()
    known = ((name, getattr(model, name)) for name in _ERRORS)
    errors: Any = {name: np.asarray(x) for name, x in known if x is not None}
    np.savez(file, **errors, params=terms.slopes, heights=terms.heights, model=text)
    return file.getvalue()


def load_model(path: str | os.PathLike[str]) -> Model:
    """Loads a model that `dpjax train` has written.

    Loading runs no code from the file. The file stores epsilon, delta, relation and
    description of the guarantee, but not its `dp_event`: the loaded model has an
    `UnsupportedDpEvent` in its place.

    Args:
        path: the path of `model.npz`, or of its folder.

    Returns:
        The model, whose `predict` takes a table.

    Raises:
        OSError: If there is no such file, or it cannot be read.
        ValueError: If the file is no model, is incomplete, has an earlier or later
            format, or has values of other types than `model_file` writes.

    Example:
        >>> import dpjax
        >>> model = dpjax.load_model("out/model.npz")  # doctest: +SKIP
        >>> model.predict("new.csv")  # doctest: +SKIP
        array([1210.4, 843.9])
        >>> dpjax.load_model(dpjax.__file__)
        Traceback (most recent call last):
            ...
        ValueError: model must be a file that dpjax train has written ...
    """
    path = Path(path)
    path = path / "model.npz" if path.is_dir() else path
    raw = path.read_bytes()
    try:
        if not zipfile.is_zipfile(io.BytesIO(raw)):
            raise ValueError("it is no NumPy archive, or cut off")
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            # `model_file` does not compress, and a few compressed bytes of a stranger
            # could fill the memory.
            if any(entry.compress_type for entry in archive.infolist()):
                raise ValueError("its entries are compressed")
        with np.load(io.BytesIO(raw), allow_pickle=False) as entries:
            params, text = entries["params"], entries["model"]
            heights = entries["heights"] if "heights" in entries.files else None
            errors = {name: entries[name] for name in _ERRORS if name in entries.files}
        content = of_type(dict, "model", json.loads(of_type(str, "model", text.item())))
        version = content.get("format")
        if type(version) is int and version == _FORMAT:
            return _model(params, heights, errors, content)
    except Exception as why:  # zipfile, NumPy and json raise errors of many types
        raise ValueError(
            "model must be a file that dpjax train has written (model.npz), whole, "
            f"got {str(path)!r}: {why}."
        ) from None
    writer = (
        "a later" if isinstance(version, int) and version > _FORMAT else "an earlier"
    )
    raise ValueError(
        f"model must be of format {_FORMAT}, which this version of dpjax reads; "
        f"{writer} version wrote {path}, got {version}."
    )


def _model(
    slopes: np.ndarray,
    heights: Any,
    errors: Mapping[str, np.ndarray],
    content: Mapping[str, Any],
) -> Model:
    """Returns the model of a file's arrays and content, whose types it checks."""
    target, privacy, columns, versions = (
        of_type(dict, name, content[name])
        for name in ("target", "privacy", "columns", "versions")
    )
    bent, knots, names = (
        of_type(list, name, content[name])
        for name in ("curves", "knots", "feature_names")
    )
    of_type(np.ndarray, "heights", heights)
    params = slopes
    if bent or knots or heights.shape != (0, 0):
        knots = tuple(number("knots", knot) for knot in knots)
        smooth = tuple(names.index(name) for name in bent)
        params = Terms(slopes, heights, knots, smooth)  # which `Model` checks
    if (exposure := content["exposure"]) is not None:
        of_type(dict, "exposure", exposure)
        exposure = BoundedColumn(
            _text(exposure, "column"), number("max", exposure["max"])
        )
    model = Model(
        params=cast(Any, params),
        columns={name: _kind(kind) for name, kind in columns.items()},
        target_name=_text(target, "name"),
        target=_kind({k: v for k, v in target.items() if k not in ("name", "unit")}),
        target_unit=_text(target, "unit"),
        link=content["link"],
        exposure=exposure,
        privacy=cast(Any, _statement(privacy)),
        method=_text(content, "method"),
        data=_text(content, "data"),
        versions={name: _text(versions, name) for name in versions},
        standard_errors=errors.get("standard_errors"),
        correlations=errors.get("correlations"),
    )
    if names != [*model.feature_names]:
        raise ValueError("its features are not those of its columns")
    return model


def _statement(content: Mapping[str, Any]) -> Statement:
    epsilon, delta = (number(name, content[name]) for name in ("epsilon", "delta"))
    _validate.within(0.0, math.inf, epsilon=epsilon)
    _validate.delta(delta)
    if content["relation"] not in _RELATIONS:
        raise ValueError("its relation is unknown")
    return Statement(epsilon, delta, content["relation"], _text(content, "description"))


def _text(content: Mapping[str, Any], name: str) -> str:
    return of_type(str, name, content[name])


def _kind(content: Any) -> Numeric | Categorical:
    of_type(dict, "column", content)
    if "categories" in content:
        names = of_type(list, "categories", content["categories"])
        return Categorical(tuple(of_type(str, "categories", name) for name in names))
    numbers = {name: number(name, value) for name, value in content.items()}
    if not numbers.keys() >= {"center", "scale"}:
        raise ValueError("a column has neither categories nor center and scale")
    return Numeric(**numbers)
