"""Where the records come from: a data set by its name, or a user's file."""

from pathlib import Path

import numpy as np

from dpjax import _validate, datasets
from dpjax.datasets import Categorical, Dataset
from dpjax.experiments._schema import read_schema, template
from dpjax.experiments._tables import column_names, read_columns

PUBLIC_SETS = {
    "adult": datasets.adult,
    "rand_hie": datasets.rand_hie,
    "blog_feedback": datasets.blog_feedback,
    "credit_default": datasets.credit_default,
    "belgian_motor": datasets.belgian_motor,
}


class SchemaNeeded(ValueError):
    """There is no schema; `template` is the text of one to fill in."""

    def __init__(self, message: str, template: str):
        super().__init__(message)
        self.template = template


def public_name(data: str) -> str | None:
    """Returns the name of the public data set that is meant, or None for a file.

    Example:
        >>> public_name("rand-hie"), public_name("prices.csv")
        ('rand_hie', None)
    """
    name = data.replace("-", "_")
    return name if name in PUBLIC_SETS else None


def load_file(
    path: Path,
    *,
    schema: Path | None,
    target: str | None,
    is_classification: bool,
    hold_out: bool,
) -> Dataset:
    """Reads and encodes a user's file; the last feature is an intercept of ones.

    Args:
        path: a CSV, Parquet or NPZ file.
        schema: the file that says what is public about each column.
        target: the column to predict. A number is standardised as the schema says, and
            one that does not parse lies at the centre; with classification, the
            schema's positive value becomes +1 and anything else -1.
        is_classification: which of the two.
        hold_out: whether every fifth record, by its public index, is for testing.

    Raises:
        SchemaNeeded: if schema is None.
        ValueError: if a file, the schema or a name in it is wrong; never because of the
            values in a record.
    """
    _validate.require(
        path.exists(), "DATA", str(path), f"a file, or one of {', '.join(PUBLIC_SETS)}"
    )
    names = column_names(path)
    _validate.require(
        target is None or target in names, "--target", target, f"a column of {names}"
    )
    if schema is None:
        raise SchemaNeeded(
            f"--schema must be given for a file, to declare what is public in {path}. "
            "Fill in this template:",
            template(names, target=target, is_classification=is_classification),
        )
    if target is None:
        raise ValueError(f"--target must be given for a file: a column of {names}.")
    declared = read_schema(schema, is_classification=is_classification)
    unknown = [name for name in declared.columns if name not in names]
    _validate.require(
        not unknown, "--schema", unknown, f"made of columns of {path.name} ({names})"
    )
    _validate.require(
        target not in declared.columns,
        "--target",
        target,
        "a column that is no feature: [columns] of the schema names it",
    )
    columns = read_columns(path, [*declared.columns, target])
    features, feature_names = datasets.encode(columns, declared.columns)
    features = np.hstack([features, np.ones((len(features), 1), np.float32)])
    targets = declared.target.encode(columns[target])[:, 0]
    if isinstance(declared.target, Categorical):
        targets, unit = 2 * targets - 1, f"+1 for {declared.target.categories[0]}"
    else:
        scale = declared.target.scale
        unit = target if scale == 1 else f"{target} / {scale:g}"
    is_test = np.arange(len(targets)) % 5 == (4 if hold_out else -1)
    _validate.require(
        not hold_out or len(targets) >= 5,
        "--show-unprotected",
        len(targets),
        "left out below 5 records",
    )
    return Dataset(
        name=path.name,
        task="classification" if is_classification else "regression",
        feature_names=(*feature_names, "intercept"),
        features=features[~is_test],
        targets=targets[~is_test],
        test_features=features[is_test],
        test_targets=targets[is_test],
        target_unit=unit,
        licence="not stated",
        source=path.name,
    )
