"""`dpjax report`: one file about a run, made of what it has released."""

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dp_accounting import UnsupportedDpEvent

from dpjax import _files, _validate
from dpjax._describe import Description, Row
from dpjax._pages import html_of, markdown_of
from dpjax._types import NeighboringRelation
from dpjax._untrusted import number
from dpjax.accounting import PrivacyGuarantee
from dpjax.cli._command_settings import ReportSettings
from dpjax.cli._ledger import read_ledger
from dpjax.cli._report import MODEL, REPORT
from dpjax.cli._report_sections import blocks_of
from dpjax.cli._terminal import show_paths, terminal
from dpjax.models import Model, load_model

_DESCRIPTION = "description.json"
_ENDS = {"value": math.nan, "low": -math.inf, "high": math.inf}  # that JSON lacks
_UNREADABLE = ArithmeticError, AttributeError, LookupError, TypeError, ValueError


def report(settings: ReportSettings) -> None:
    """Writes the report of a run, whole or not at all; no table is read."""
    path, ending = Path(settings.run), settings.format
    if not path.is_file():
        names = [x for x in (REPORT, _DESCRIPTION) if (path / x).is_file()]
        rule = f"a folder that has either {REPORT} of dpjax train or tune, or "
        rule += f"{_DESCRIPTION} of dpjax describe; or one of these files"
        _validate.require(len(names) == 1, "RUN", str(path), rule)
        path /= names[0]
    output = settings.output or path.with_name(f"report.{ending}")
    _files.check_file("--output", output, suffix=f".{ending}")
    inputs = {"RUN": path, "--ledger": settings.ledger or path}
    _files.check_spared("--output", [output], inputs)
    ledger = None if settings.ledger is None else read_ledger(settings.ledger)
    model = load_model(path.with_name(MODEL)) if path.name == REPORT else None
    raw = path.read_bytes()
    try:
        content = json.loads(raw)
        released = _described(content) if model is None else _same(content, model)
        what = "model" if model is not None else "description"
        title = f"Report on a private {what} of {content['data']}"
        write = html_of if ending == "html" else markdown_of
        text = write(title, [*blocks_of(content, released, ledger)])
    except (*_UNREADABLE, RecursionError) as why:
        raise ValueError(
            "RUN must be what dpjax train, tune or describe has written, got "
            f"{str(path)!r}: {type(why).__name__}, {why}."
        ) from None
    _files.write_whole(output, text.encode(), name="--output")
    if "tuning" in content:  # when a search ended tells how many runs it made
        day = datetime.fromtimestamp(path.stat().st_mtime, UTC).date()
        _files.date_at(day, output, *{path.parent} & {output.parent})
    show_paths(terminal(), [output])


def _same(content: Mapping[str, Any], model: Model) -> Model:
    """Returns the model, if it is of the same run."""
    said, own = content["privacy"], model.privacy
    names = content["method"], content["data"], content["feature_names"]
    is_same = names == (model.method, model.data, [*model.feature_names])
    if not is_same or (said["epsilon"], said["delta"]) != (own.epsilon, own.delta):
        raise ValueError(f"it is of another run than {MODEL} in its folder")
    return model


def _described(content: Mapping[str, Any]) -> Description:
    said, numbers, rows = content["privacy"], ("epsilon", "delta"), []
    for row in content["rows"]:
        cells: Any = {k: _ENDS[k] if x is None else x for k, x in row.items()}
        rows.append(Row(**cells))
    privacy = PrivacyGuarantee(
        *(number(name, said[name]) for name in numbers),
        relation=NeighboringRelation[said["relation"]],
        dp_event=UnsupportedDpEvent(),
        description=said["description"],
    )
    shares = {
        (cost["column"], cost["what"]): cost["share"] for cost in content["costs"]
    }
    names = "edges", "num_samples", "by", "level"
    given: Any = {name: content[name] for name in names}
    return Description(tuple(rows), shares=shares, privacy=privacy, **given)
