"""The commands on released files: `report`, `show`, `plot`, `export`, `predict`.

`report` writes a page to hand on. Its text is in `report.md`: titles, paragraphs,
lists, warnings and, in brackets, tables and pictures. A paragraph or item is left out
if a value that it names is missing. All values follow from released files, public facts
and the ledger.
"""

import csv
import dataclasses
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from dp_accounting import UnsupportedDpEvent

from dpjax import _validate
from dpjax._rounding import as_decimal, claim, digits, rounded_up
from dpjax._types import NeighboringRelation
from dpjax.accounting import (
    PrivacyGuarantee,
    Sampling,
    gaussian_event,
    noise_multiplier,
    noise_multiplier_to_epsilon,
)
from dpjax.accounting._guarantee import group_budget
from dpjax.tables import _pages
from dpjax.tables._pages import Block, Picture, Rows, Text, html_of
from dpjax.tables.cli import _settings, _terminal
from dpjax.tables.cli._curator import count_cells, say_to_curator, undecoded
from dpjax.tables.cli._ledger import Ledger, read_ledger, said_left
from dpjax.tables.cli._options import FROM_SYSTEM
from dpjax.tables.cli._outputs import MODEL, REPORT
from dpjax.tables.columns._kinds import BoundedColumn, Categorical, Numeric
from dpjax.tables.describe._description import Description, Row, costs_of, numbers_of
from dpjax.tables.io._tables import Column, column_names, read_columns
from dpjax.tables.io._texts import Texts, text_of
from dpjax.tables.io._untrusted import harmless, number
from dpjax.tables.models._model import Model, load_model

Content = Mapping[str, Any]
_MOST_NAMES, _MOST_LINES, _MOST_PANELS = 12, 200, 40  # the most to show
_RATES = 0.001, 0.01, 0.1  # false positive rates
_SAID = "epsilon", "delta", "loss"  # shown apart from the settings
_DESCRIPTION = "description.json"
_ENDS = {"value": math.nan, "low": -math.inf, "high": math.inf}  # JSON lacks these
_UNREADABLE = ArithmeticError, AttributeError, LookupError, TypeError, ValueError
_SUFFIXES = {"onnx": ".onnx", "sql": ".sql"}
_WHERE = "where it is"
_SHOWN = (-2.0, -1.0, 0.0, 1.0, 2.0)  # where values of curves are shown, in scales


def report(settings: _settings.ReportSettings) -> None:
    """Writes the report of a run, whole or not at all; no table is read."""
    path = Path(settings.run)
    if not path.is_file():
        names = [x for x in (REPORT, _DESCRIPTION) if (path / x).is_file()]
        rule = f"a folder that has either {REPORT} of dpjax train, or "
        rule += f"{_DESCRIPTION} of dpjax describe; or one of these files"
        _validate.require(len(names) == 1, "RUN", str(path), rule)
        path /= names[0]
    output = settings.output or path.with_name("report.html")
    inputs = {"RUN": path, "--ledger": settings.ledger or path}
    _terminal.check_output(output, inputs, ".html")
    ledger = None if settings.ledger is None else read_ledger(settings.ledger)
    model = load_model(path.with_name(MODEL)) if path.name == REPORT else None
    raw = path.read_bytes()
    try:
        content = json.loads(raw)
        released = _described(content) if model is None else model
        noun = "description"
        if model is not None:
            noun, own, privacy = "model", content["privacy"], model.privacy
            names = content["method"], content["data"], content["feature_names"]
            is_same = names == (model.method, model.data, [*model.feature_names])
            stated = own["epsilon"], own["delta"]
            if not is_same or stated != (privacy.epsilon, privacy.delta):
                raise ValueError(f"it is of another run than {MODEL} in its folder")
        title = f"Report on a private {noun} of {content['data']}"
        text = html_of(title, [*blocks_of(content, released, ledger)])
    except (*_UNREADABLE, RecursionError) as why:
        raise ValueError(
            "RUN must be what dpjax train or describe has written, "
            f"got {str(path)!r}: {type(why).__name__}, {why}."
        ) from None
    _terminal.write_output(output, text.encode())


def _described(content: Mapping[str, Any]) -> Description:
    """Returns the description that `dpjax describe` wrote as this content."""
    own, numbers, rows = content["privacy"], ("epsilon", "delta"), []
    for row in content["rows"]:
        cells: Any = {k: _ENDS[k] if x is None else x for k, x in row.items()}
        rows.append(Row(**cells))
    privacy = PrivacyGuarantee(
        *(number(name, own[name]) for name in numbers),
        relation=NeighboringRelation[own["relation"]],
        dp_event=UnsupportedDpEvent(),
        description=own["description"],
    )
    shares = {(x["column"], x["part"]): x["share"] for x in content["costs"]}
    names = "edges", "num_samples", "by", "level"
    given: Any = {name: content[name] for name in names}
    given["sample_size"] = content.get("sample_size")
    if (unit := content.get("unit")) is not None:
        given |= {"unit": unit["column"], "records_per_unit": unit["records_per_unit"]}
    return Description(tuple(rows), shares=shares, privacy=privacy, **given)


def blocks_of(
    content: Content, released: Model | Description, ledger: Ledger | None
) -> Iterator[Block]:
    """Yields the titles, paragraphs, tables and pictures of a report."""
    privacy = _with_event(content, released.privacy)
    values = _values(content, released, privacy, ledger)
    costs = {
        "all together": content["privacy"],
        "of it, centers and scales": content.get("ranges", {}).get("privacy"),
        "on the sample, by itself": content.get("sample", {}).get("budget_of_sample"),
        "scores, on other records": content.get("evaluation", {}).get("privacy"),
    }
    spent = [
        [name, *(rounded_up(cost[x], 6) for x in ("epsilon", "delta"))]
        for name, cost in costs.items()
        if cost is not None
    ]
    parts: dict[str, list[Block]] = {
        "attacks": _attacks(privacy),
        "spent": [Rows(["for what", "epsilon", "delta"], spent)],
    }
    if ledger is not None:
        runs = [[x.id, str(x.at), x.method, "; ".join(x.parts)] for x in ledger.entries]
        parts["runs"] = [Rows(["run", "day", "method", "released"], runs)]
    if isinstance(released, Model):
        parts |= _of_model(content, released)
    else:
        parts |= {"costs": [costs_of(released)], "numbers": numbers_of(released)}
    for chunk in _terminal.chunks_of("report.md"):
        if chunk[0] == "[":
            yield from parts.get(chunk[1:-1], [])
        elif chunk[0] == "-":
            items = (_terminal.filled(item, values) for item in chunk[2:].split("\n- "))
            if shown := [item for item in items if item]:
                yield shown
        elif text := _terminal.filled(chunk.lstrip("#! "), values):
            yield text if chunk[0] == "#" else Text(text, chunk[0] == "!")


def _values(
    content: Content,
    released: Model | Description,
    privacy: PrivacyGuarantee,
    ledger: Ledger | None,
) -> dict[str, Any]:
    """Returns the placeholders' values; a condition that holds is "", else missing."""
    terms, unit = content["privacy"] | content, content.get("unit")
    scores, is_model = content.get("evaluation", {}), isinstance(released, Model)
    count = content["num_samples"] + scores.get("num_samples", 0)
    count = count if unit is None else unit["num_units"]
    count = (content.get("sample") or {"num_records": count})["num_records"]
    budget = privacy.epsilon, privacy.delta
    options = " --epsilon {} --delta {}".format(*(rounded_up(x, 6) for x in budget))
    values: dict[str, Any] = {
        **{"data": content["data"], "unit": unit, "noise_key": terms["noise_key"]},
        **{"description": privacy.description, "claim": claim(*budget)},
        **{"one": "record", "ones": "records", "count": f"{count:,}"},
        **{name: content.get(name) for name in ("evaluation", "sample")},
    }
    if unit is not None:
        values["one"] = f"group of records with one {unit['column']}"
        values["ones"] = f"values of {unit['column']}"
    if ledger is not None:
        values["limit"] = claim(ledger.limit.epsilon, ledger.limit.delta)
        values["left"] = said_left(ledger.filter)
    if isinstance(released, Model):
        name, versions, columns = "train", released.versions or {}, released.columns
        values |= {"method": released.method, "use": _meaning(released)}
        values["loss"] = content["loss"]
        options += f" --loss {content['loss']}"
    else:
        name, versions = "describe", {"dpjax": content["dpjax"]}
        columns = dict.fromkeys(row.column for row in released.rows)
    values["command"] = f"{name} {content['data']}{options}"
    values["columns"] = _listed(columns)
    values["versions"] = ", ".join(f"{k} {v}" for k, v in versions.items())
    for name, both in [*scores.get("measures", {}).items()][::-1]:
        model, constant = _bounds(both["model"]), _bounds(both["constant"])
        values["quality"] = f"{name} {model}, of a constant {constant}"
        is_loss = " loss" in name or " deviance" in name
        values[f"read_{'loss' if is_loss else name.split(' ')[0]}"] = name
    entries = [] if ledger is None else [entry.id for entry in ledger.entries]
    is_known = not isinstance(privacy.dp_event, UnsupportedDpEvent)
    flags = {
        "public": content.get("is_public"),
        "seeded": terms["noise_key"] not in FROM_SYSTEM.values(),
        "of_records": unit is None,
        "of_noise": is_known,
        "of_claim": not is_known,
        "no_ledger": ledger is None,
        "not_in_ledger": ledger and content.get("ledger_entry") not in entries,
        "of_model": is_model,
        "of_table": not is_model,
        "of_two_parts": scores,
        "compared": "comparison" in content,
        "unknown": is_model and not scores and "comparison" not in content,
    }
    return values | {name: "" for name, is_so in flags.items() if is_so}


def _attacks(privacy: PrivacyGuarantee) -> list[Block]:
    columns = _RATES, privacy.tradeoff(_RATES), privacy.posterior(0.01, _RATES)
    lines = [[*map(_percent, line)] for line in zip(*columns, strict=True)]
    head = ['wrong ones with a "yes"', "right ones, at most", "sure, at most"]
    rates = np.linspace(0.0, 1.0, 101)
    both = np.stack([privacy.tradeoff(rates), rates], axis=1)
    shapes = {'share of wrong ones with a "yes"': _pages.Shape(rates, both)}
    figure = _pages.plot(shapes, ["at most", "a mere guess"], "share of right ones")
    return [Rows(head, lines), Picture(figure, 'Right candidates with a "yes"')]


def _with_event(content: Content, privacy: PrivacyGuarantee) -> PrivacyGuarantee:
    """Returns the guarantee with its event, if the run has Gaussian noise alone.

    This holds if the noise multiplier, of all steps or of each, costs exactly what the
    run states. The k records of a unit together move a mean k times as far as one
    record. A sample has the delta(epsilon) of a batch without replacement, whatever the
    run on it releases (Balle, Barthe, Gaboardi 2018, Theorem 9).
    """
    stats, sample = content.get("stats", {}), content.get("sample")
    multiplier, num_steps = stats.get("noise_multiplier"), stats.get("num_steps", 1)
    size = (content.get("unit") or {"records_per_unit": 1})["records_per_unit"]
    budget = content["privacy"] if sample is None else sample["budget_of_sample"]
    if budget["delta"] <= 0:
        return privacy
    epsilon, delta = group_budget(budget["epsilon"], budget["delta"], size)
    if "rows" in content:  # a description
        multiplier = noise_multiplier(epsilon, delta, Sampling(num_steps=1))
    # The multiplier may be for all steps together (num = 1) or for each step.
    for num in {1, num_steps} if multiplier else ():
        cost = noise_multiplier_to_epsilon(multiplier, delta, Sampling(num_steps=num))
        if math.isclose(cost, epsilon, rel_tol=1e-6):
            drawn = Sampling(num_steps=1)
            if sample is not None:
                sizes = sample["num_records"], sample["max_records"]
                drawn = Sampling(1, num_samples=sizes[0], batch_size=sizes[1])
            event = gaussian_event(multiplier / (size * math.sqrt(num)), drawn)
            return dataclasses.replace(privacy, dp_event=event)
    return privacy


def _of_model(content: Content, model: Model) -> dict[str, list[Block]]:
    """Returns the parts of a page that only the report on a model has, by name."""
    settings = [
        [name.replace("_", " "), _plain(entry)]
        for name, entry in (content["arguments"] | content["stats"]).items()
        if isinstance(entry, int | float | str) and name not in _SAID
    ]
    parts: dict[str, list[Block]] = {
        "public": [_public(content, model)],
        "settings": [Rows(["setting", ""], settings)],
        "numbers": [*_numbers(model)],
    }
    if (scores := content.get("evaluation")) is not None:
        lines = [
            [name, *(_bounds(both[x]) for x in ("model", "constant"))]
            for name, both in scores["measures"].items()
        ]
        parts["measures"] = [Rows(["measure", "model", "constant"], lines)]
        lines = [
            [f"{x['from']:.0%} to {x['to']:.0%}", _bounds(x["share"])]
            for x in scores["calibration"]
        ]
        head = ["predicted probability", "share with the label"]
        parts["calibration"] = [Rows(head, lines)] if lines else []
    if lines := content.get("comparison"):
        head = [name.replace("_", " ") for name in lines[0]]
        rows = [[*map(_plain, line.values())] for line in lines]
        parts["comparison"] = [Rows(head, rows)]
    return parts


def _public(content: Content, model: Model) -> Rows:
    """Returns a table of what columns hold, and whether it was declared or released."""
    ranges, exposure = content.get("ranges", {}).get("columns", {}), model.exposure
    kinds: dict[str, Any] = {**model.columns, model.target_name: model.target}
    if exposure is not None:
        kinds[exposure.column] = exposure
    lines = []
    for name, kind in kinds.items():
        known = "released privately" if name in ranges else "declared"
        shown, text = name, _kind_of(kind)
        if name == model.target_name:
            shown += " (target)"
            if model.link == "log" and exposure is not None:
                scale = digits(kind.scale / exposure.max)
                text = f"amounts of about {scale} for one of {exposure.column}"
            elif model.link == "log":
                text = f"amounts of about {digits(kind.scale)}"
        lines.append([shown, text, known])
    return Rows(["column", "what it holds", "how that is known"], lines)


def _kind_of(kind: Any) -> str:
    """Returns what a column holds in words, with its categories or its scale."""
    if kind.categories:
        return f"categories: {_listed(kind.categories)}"
    if not isinstance(kind, Numeric):
        return f"an exposure up to {digits(kind.max)}"
    text = f"numbers around {digits(kind.center)}, give or take {digits(kind.scale)}"
    if kind.limit < math.inf:
        text += f", held within {' and '.join(map(digits, kind.range))}"
    return text


def _numbers(model: Model) -> Iterator[Block]:
    if 0 < len(model.columns) <= _MOST_PANELS:
        yield Picture(_figure_of(model), "What each column adds")
    head, lines = _weights_of(model)
    if len(lines) > _MOST_LINES:
        yield Text(f"The first {_MOST_LINES} of {len(lines):,}; dpjax show has all.")
    yield Rows(head, lines[:_MOST_LINES])
    notes = [] if model.standard_errors is None else model.summary().sentences
    yield [*notes, *_limits_of(model)]


def _listed(names: Iterable[Any]) -> str:
    shown = [*map(str, names)]
    more = len(shown) - _MOST_NAMES
    return ", ".join(shown[:_MOST_NAMES]) + (f" and {more:,} more" if more > 0 else "")


def _bounds(pair: Content) -> str:
    value, low, high = (digits(pair[name]) for name in ("value", "low", "high"))
    return f"{value} ({low} to {high})"


def _percent(share: float) -> str:
    return f"{rounded_up(100 * as_decimal(share), 3)}%"


def _plain(entry: Any) -> str:
    if isinstance(entry, float):
        return digits(entry)
    return "" if entry is None else str(entry)


def export(settings: _settings.ExportSettings) -> None:
    """Writes a model in another language, whole or not at all."""
    suffix = _SUFFIXES[settings.format]
    output = settings.output or Path(f"model{suffix}")
    _terminal.check_output(output, {"MODEL": Path(settings.model)}, suffix)
    _terminal.write_output(output, model_at(settings.model).export(settings.format))


def model_at(path: str) -> Model:
    """Returns the model of a command's first argument."""
    rule = "a file that dpjax train has written, or its folder"
    _validate.require(Path(path).exists(), "MODEL", path, rule)
    return load_model(path)


def show(settings: _settings.ShowSettings) -> None:
    """Prints a model in the units of its table, and its guarantee."""
    model = model_at(settings.model)
    console = _terminal.terminal()
    versions = ", ".join(f"{k} {v}" for k, v in (model.versions or {}).items())
    console.print(f"{model.method} of {model.data} ({versions})")
    console.print(_meaning(model))
    head, lines = _weights_of(model)
    right = [title for title in head[1:] if title != _WHERE]
    console.print(_terminal.table_of(head, lines, right))
    if model.standard_errors is not None:
        for note in model.summary().sentences:
            console.print(note)
    stated = claim(model.privacy.epsilon, model.privacy.delta)
    console.print(f"Privacy: {stated}. {model.privacy.description}")
    for line in _limits_of(model):
        console.print(line)


def plot(settings: _settings.PlotSettings) -> None:
    """Draws each column's effect as PNG or SVG, written whole or not at all."""
    output = settings.output
    _terminal.check_output(output, {"MODEL": Path(settings.model)})
    model = model_at(settings.model)
    rule = "a model that reads a column"
    _validate.require(len(model.columns) > 0, "MODEL", settings.model, rule)
    figure = _figure_of(model, is_dark=settings.dark)
    _terminal.write_output(output, _pages.image_of(figure, output.suffix[1:]))


def _figure_of(model: Model, *, is_dark: bool = False) -> Any:
    """Draws what each column adds to a model's predictions, with matplotlib."""
    stated = claim(model.privacy.epsilon, model.privacy.delta)
    label, effect, _ = _words_of(model)
    return _pages.plot(
        *(model.shapes(), [], label),
        title=[f"{model.method} of {model.data}: {stated}", f"What a column {effect}"],
        is_factor=model.link == "log",
        is_dark=is_dark,
    )


def _words_of(model: Model) -> tuple[str, str, str]:
    """Returns a curve's label, a column's effect, and a text on the prediction."""
    name = target = model.target_name
    number = "number" if model.curves.knots else "coefficient"
    if model.positive is not None:
        target += f" = {model.positive} ({model.target_unit})"
        text = f"Predicts the probability of {target}. A {number} is what is added to "
        text += "the logarithm of its odds."
        return "added log odds", f"adds to the log odds of {target}", text
    target += f" in {model.target_unit}" if name == "target" else ""
    if model.exposure is not None:
        target += f", in proportion to {model.exposure.column}"
    if model.link == "identity":
        text = f"Predicts {target}. A {number} is what is added to it."
        return f"added {name}", f"adds to {target}", text
    text = f"Predicts the mean of {target}. A factor is what it is multiplied by."
    return "factor of the mean", f"multiplies the mean of {target} by", text


def _meaning(model: Model) -> str:
    """Returns sentences on the predictions of a model, and what its numbers mean."""
    text = _words_of(model)[2]
    if model.curves.knots:
        none = "factor of 1" if model.link == "log" else "value of 0"
        text += f" A column has a {none} at its center, or in no category."
    return text


def _weights_of(model: Model) -> tuple[list[str], list[list[str]]]:
    """Returns the titles and rows of coefficients (with any intervals) or curves."""
    if model.standard_errors is not None:
        summary = model.summary()
        pairs = zip(summary.names, summary.rows, strict=True)
        first = f"larger by 1, or so{_at_one(model)}"
        return [first, *summary.header], [[name, *row] for name, row in pairs]
    is_linear, lines = not model.curves.knots, []
    title = "coefficient" if is_linear else "adds"
    title = "factor" if model.link == "log" else title
    for key, where, numbers in _coefficients(model) if is_linear else _points(model):
        if model.link == "log":
            numbers = [math.exp(min(number, 700.0)) for number in numbers]
        lines.append([key, where, " to ".join(map(digits, numbers))])
    return ["column", _WHERE, title], lines


def _coefficients(model: Model) -> Iterator[tuple[str, str, list[float]]]:
    """Yields columns, the category or step of a coefficient, and the coefficient."""
    weights = model.coefficients()
    for key, kind in model.columns.items():
        for place, name in enumerate(kind.names(key)):
            where = kind.categories[place] if kind.categories else "larger by 1"
            yield key, where, [weights[name]]
    where = f"all at 0 or in no category{_at_one(model)}"
    yield "intercept", where, [weights["intercept"]]


def _points(model: Model) -> Iterator[tuple[str, str, list[float]]]:
    """Yields columns, positions and the values there; first the range of a curve."""
    curves = model.curves
    bent = {model.feature_names[index] for index in curves.smooth}
    for key, (grid, values) in model.shapes().items():
        kind = model.columns[key]
        if kind.categories:
            points = zip(grid, values, strict=True)
        else:
            how = f"{len(curves.knots)} knots" if key in bent else "a line"
            where = f"{how}, {digits(grid[0])} to {digits(grid[-1])}"
            yield key, where, [values.min(), values.max()]
            at = [kind.center + kind.scale * x for x in _SHOWN if abs(x) <= kind.limit]
            at_points = np.interp(at, grid, values)
            points = zip(map(digits, at), at_points, strict=True)
        for where, value in points:
            yield key, where, [value]
    where = f"all at their centers or in no category{_at_one(model)}"
    yield "constant", where, [model.constant]


def _at_one(model: Model) -> str:
    return f", {model.exposure.column} at 1" if model.exposure is not None else ""


def _limits_of(model: Model) -> Iterator[str]:
    """Yields the bounds on means and columns, and the value of missing cells."""
    if model.mean_range is not None:
        low, high = model.mean_range
        of = ""
        if (exposure := model.exposure) is not None:
            of = f" where {exposure.column} is {exposure.max:g}, and no more counts"
        yield f"Means lie between {low:.4g} and {high:.4g}{of}."
    by_range: dict[str, list[str]] = {}
    for name, kind in model.columns.items():
        if not kind.categories and kind.limit < math.inf:
            low, high = (kind.center + s * kind.limit * kind.scale for s in (-1, 1))
            by_range.setdefault(f"{low:.4g} and {high:.4g}", []).append(name)
    for ends, names in by_range.items():
        verb = "is" if len(names) == 1 else "are each"
        yield f"{', '.join(names)} {verb} held within {ends}."
    if not all(kind.categories for kind in model.columns.values()):
        yield "A cell that holds no number lies at the center of its column."


def predict(settings: _settings.PredictSettings) -> None:
    """Predicts the target of every record of a file.

    No guarantee covers the records of this file: neither their predictions, nor the
    messages on standard error about their cells, which are for the curator alone.
    """
    source = Path(settings.source)
    _terminal.check_output(settings.output, {"DATA": source}, ".csv")
    model = model_at(settings.model)
    names = column_names(source, settings.text_format)
    copied = names if settings.keep else []
    if settings.id is not None:
        rule = f"a column of {names}"
        _validate.require(settings.id in names, "--id", settings.id, rule)
        copied = [settings.id, *(name for name in copied if name != settings.id)]
    missing = [name for name in model.columns if name not in names]
    rule = f"a file with one of the columns that the model reads, {[*model.columns]}"
    is_known = len(missing) < len(model.columns) or not model.columns
    _validate.require(is_known, "DATA", names, rule)
    exposure = [] if model.exposure is None else [model.exposure.column]
    read = [name for name in (*model.columns, *exposure) if name in names]
    wanted = list(dict.fromkeys([*read, *copied])) or names[:1]
    columns = read_columns(source, wanted, text_format=settings.text_format)
    # The cells of a column that is not in the file count as missing.
    nothing = np.full(len(columns[wanted[0]]), np.nan)
    known = {name: columns[name] for name in read}
    given = known | dict.fromkeys(missing, nothing)
    predictions = model.predict_columns(given or {"": nothing})
    for name in missing:
        kind = model.columns[name]
        center = f"the center {digits(kind.center)}"
        value = "none of its categories" if kind.categories else center
        _terminal.warn(f"There is no column {name}: {value} is used for all records.")
    if (gone := [name for name in exposure if name not in names]) != []:
        _terminal.warn(f"There is no column {gone[0]}: predictions are for one of it.")
    about_means = _said_of_means(model, known, predictions)
    say_to_curator([*_said_of_cells(model, known), *about_means])
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    title = f"predicted_{model.target_name}"
    if model.positive is not None:
        title = f"probability_{model.target_name}={model.positive}"
    writer.writerow(map(harmless, [*copied, title]))
    cells = []
    for column in (columns[name] for name in copied):
        blank = None if isinstance(column, Texts) else "nan"  # a missing cell
        texts = map(text_of, column.tolist())
        cells.append(harmless("" if x == blank else x) for x in texts)
    shown = [f"{prediction:.9g}" for prediction in predictions.tolist()]
    writer.writerows(zip(*cells, shown, strict=True))
    _terminal.write_output(settings.output, text.getvalue().encode("utf-8", "replace"))


def _said_of_cells(model: Model, columns: Mapping[str, Column]) -> Iterator[str]:
    """Yields messages, by column, on cells that cannot be used as they are."""
    kinds: dict[str, Numeric | Categorical | BoundedColumn]
    kinds = {k: v for k, v in model.columns.items() if k in columns}
    if (exposure := model.exposure) is not None and exposure.column in columns:
        kinds[exposure.column] = exposure
    for name, kind in kinds.items():
        cells = count_cells(kind, columns[name])
        if isinstance(kind, BoundedColumn) and cells.far:
            far = f"{cells.of_all(cells.far)} cells lie above {kind.max:g}"
            yield f"{name}: {far}: they count as this, as in training."
        if cells.undecoded:
            yield f"{name}: {undecoded(cells)}"
        count = cells.total - cells.used
        problem, value = "hold no number", "the center of the column"
        if kind.categories:
            problem, value = "match no category", "none of them"
            if 0 < cells.missing < count:
                problem += f", {cells.missing:,} of them without a value"
            if len(kind.categories) == 1:  # e.g. "yes": "no" is expected, too
                problem, count = "hold no value", cells.missing
        elif isinstance(kind, BoundedColumn):
            problem, value = "hold no number from zero on", "zero"
        if count:
            looks = f", most {cells.looks}" if cells.looks else ""
            text = f"{cells.of_all(count)} cells {problem}{looks}"
            yield f"{name}: {text}: they count as {value}, as in training."


def _said_of_means(
    model: Model, columns: Mapping[str, Column], means: np.ndarray
) -> Iterator[str]:
    """Yields a message on means at an end of the model's range."""
    if model.mean_range is None:
        return
    exposure, shares = model.exposure, 1.0
    if exposure is not None:
        cells = columns.get(exposure.column)
        shares = 1 / exposure.max if cells is None else exposure.shares(cells)
    low, high = model.mean_range
    is_end = (means <= low * shares * 1.000001) | (means >= high * shares / 1.000001)
    if count := np.count_nonzero(is_end & (means > 0)):
        yield (
            f"{count:,} of {len(means):,} means are at an end of the model's range of "
            "means: true ones may be far beyond."
        )
