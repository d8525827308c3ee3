"""`dpjax report`: one file about a run, for others.

Its text is in `report.md`: titles, paragraphs, lists, warnings and, in brackets, tables
and pictures. A sentence is left out if a value that it names is missing. All values
follow from released files, public facts and the ledger.
"""

import dataclasses
import importlib.resources
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from dp_accounting import UnsupportedDpEvent

from dpjax import _files, _validate
from dpjax._rounding import as_decimal, claim, digits, rounded_up
from dpjax._types import NeighboringRelation
from dpjax.accounting import (
    PrivacyGuarantee,
    Sampling,
    gaussian_event,
    noise_multiplier,
    noise_multiplier_to_epsilon,
)
from dpjax.accounting._group import group_budget
from dpjax.tables import _pages
from dpjax.tables._pages import Block, Picture, Rows, Text, html_of
from dpjax.tables.cli import _saved
from dpjax.tables.cli._command_settings import ReportSettings
from dpjax.tables.cli._ledger import Ledger, read_ledger, said_left
from dpjax.tables.cli._options import FROM_SYSTEM
from dpjax.tables.cli._report import MODEL, REPORT
from dpjax.tables.cli._terminal import show_paths, terminal
from dpjax.tables.columns._kinds import Numeric
from dpjax.tables.describe._description import Description, Row, costs_of, numbers_of
from dpjax.tables.io._untrusted import number
from dpjax.tables.models._file import load_model
from dpjax.tables.models._model import Model

Content = Mapping[str, Any]
_MOST_NAMES, _MOST_LINES, _MOST_PANELS = 12, 200, 40  # that are shown
_RATES = 0.001, 0.01, 0.1  # of false positives
_SAID = "epsilon", "delta", "loss"  # beside the settings
_DESCRIPTION = "description.json"
_ENDS = {"value": math.nan, "low": -math.inf, "high": math.inf}  # that JSON lacks
_UNREADABLE = ArithmeticError, AttributeError, LookupError, TypeError, ValueError


def report(settings: ReportSettings) -> None:
    """Writes the report of a run, whole or not at all; no table is read."""
    path = Path(settings.run)
    if not path.is_file():
        names = [x for x in (REPORT, _DESCRIPTION) if (path / x).is_file()]
        rule = f"a folder that has either {REPORT} of dpjax train, or "
        rule += f"{_DESCRIPTION} of dpjax describe; or one of these files"
        _validate.require(len(names) == 1, "RUN", str(path), rule)
        path /= names[0]
    output = settings.output or path.with_name("report.html")
    _files.check_file("--output", output, suffix=".html")
    inputs = {"RUN": path, "--ledger": settings.ledger or path}
    _files.check_spared("--output", [output], inputs)
    ledger = None if settings.ledger is None else read_ledger(settings.ledger)
    model = load_model(path.with_name(MODEL)) if path.name == REPORT else None
    raw = path.read_bytes()
    try:
        content = json.loads(raw)
        released = _described(content) if model is None else _same(content, model)
        noun = "model" if model is not None else "description"
        title = f"Report on a private {noun} of {content['data']}"
        text = html_of(title, [*blocks_of(content, released, ledger)])
    except (*_UNREADABLE, RecursionError) as why:
        raise ValueError(
            "RUN must be what dpjax train or describe has written, "
            f"got {str(path)!r}: {type(why).__name__}, {why}."
        ) from None
    _files.write_whole(output, text.encode(), name="--output")
    show_paths(terminal(), [output])


def _same(content: Mapping[str, Any], model: Model) -> Model:
    """Returns the model, if it is of the same run."""
    own, privacy = content["privacy"], model.privacy
    names = content["method"], content["data"], content["feature_names"]
    is_same = names == (model.method, model.data, [*model.feature_names])
    stated = own["epsilon"], own["delta"]
    if not is_same or stated != (privacy.epsilon, privacy.delta):
        raise ValueError(f"it is of another run than {MODEL} in its folder")
    return model


def _described(content: Mapping[str, Any]) -> Description:
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
    shares = {
        (cost["column"], cost["part"]): cost["share"] for cost in content["costs"]
    }
    names = "edges", "num_samples", "by", "level"
    given: Any = {name: content[name] for name in names}
    given["sample_size"] = content.get("sample_size")
    if (unit := content.get("unit")) is not None:
        given |= {"unit": unit["column"], "records_per_unit": unit["records_per_unit"]}
    return Description(tuple(rows), shares=shares, privacy=privacy, **given)


def blocks_of(
    content: Content, released: Model | Description, ledger: Ledger | None
) -> Iterator[Block]:
    """Yields a report.

    Args:
        content: of report.json or description.json.
        released: the model, or the description.
        ledger: of the table, if it is given.
    """
    privacy = _with_event(content, released.privacy)
    values = _values(content, released, privacy, ledger)
    parts: dict[str, list[Block]] = {
        "attacks": _attacks(privacy),
        "spent": [_spent(content)],
    }
    if ledger is not None:
        runs = [[x.id, str(x.at), x.method, "; ".join(x.parts)] for x in ledger.entries]
        parts["runs"] = [Rows(["run", "day", "method", "released"], runs)]
    if isinstance(released, Model):
        parts |= _of_model(content, released)
    else:
        parts |= {"costs": [costs_of(released)], "numbers": numbers_of(released)}
    template = importlib.resources.files("dpjax.tables.cli").joinpath("report.md")
    for chunk in template.read_text("utf-8").strip().split("\n\n"):
        if chunk[0] == "[":
            yield from parts.get(chunk[1:-1], [])
        elif chunk[0] == "-":
            items = (_filled(item, values) for item in chunk[2:].split("\n- "))
            if shown := [item for item in items if item]:
                yield shown
        elif text := _filled(chunk.lstrip("#! "), values):
            yield text if chunk[0] == "#" else Text(text, chunk[0] == "!")


def _filled(text: str, values: Content) -> str:
    """Returns a sentence with its values, "" if one is not there."""
    names = re.findall(r"{(\w+)", text)
    is_known = all(values.get(name) is not None for name in names)
    return " ".join(text.split()).format_map(values) if is_known else ""


def _values(
    content: Content,
    released: Model | Description,
    privacy: PrivacyGuarantee,
    ledger: Ledger | None,
) -> dict[str, Any]:
    """Returns what sentences name; what a sentence only depends on is ""."""
    terms, unit = content["privacy"] | content, content.get("unit")
    scores = content.get("evaluation", {})
    own = claim(privacy.epsilon, privacy.delta)
    budget = (rounded_up(x, 6) for x in (privacy.epsilon, privacy.delta))
    options = " --epsilon {} --delta {}".format(*budget)
    values: dict[str, Any] = {
        **{"data": content["data"], "unit": unit, "noise_key": terms["noise_key"]},
        **{"description": privacy.description, "claim": own, "one": "record"},
        **{"ones": "records", "count": f"{_count(content):,}"},
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
        values |= {"method": released.method, "use": _saved.meaning(released)}
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
    is_model, is_compared = isinstance(released, Model), "comparison" in content
    entries = [] if ledger is None else [entry.id for entry in ledger.entries]
    is_paid = ledger is None or content.get("ledger_entry") in entries
    is_known = not isinstance(privacy.dp_event, UnsupportedDpEvent)
    flags = {
        "public": content.get("is_public"),
        "seeded": terms["noise_key"] not in FROM_SYSTEM.values(),
        "of_records": unit is None,
        "of_noise": is_known,
        "of_claim": not is_known,
        "no_ledger": ledger is None,
        "not_in_ledger": not is_paid,
        "of_model": is_model,
        "of_table": not is_model,
        "of_two_parts": scores,
        "compared": is_compared,
        "unknown": not (scores or is_compared) and is_model,
    }
    return values | {name: "" for name, is_so in flags.items() if is_so}


def _count(content: Content) -> int:
    """Returns how many records, or units, the table has."""
    if (sample := content.get("sample")) is not None:
        return sample["num_records"]
    if (unit := content.get("unit")) is not None:
        return unit["num_units"]
    return content["num_samples"] + content.get("evaluation", {}).get("num_samples", 0)


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

    It has only that if the multiplier, of all steps or of each, costs exactly what the
    run states. The k records of a unit together move a mean k times as far as one
    record. With a sample, delta(epsilon) is that of a batch without replacement,
    whatever the run on the sample releases (Balle, Barthe, Gaboardi 2018, Theorem 9).
    """
    stats, sample = content.get("stats", {}), content.get("sample")
    multiplier, num_steps = stats.get("noise_multiplier"), stats.get("num_steps", 1)
    size = (content.get("unit") or {"records_per_unit": 1})["records_per_unit"]
    budget = content["privacy"] if sample is None else sample["budget_of_sample"]
    if budget["delta"] <= 0:
        return privacy
    epsilon, delta = group_budget(budget["epsilon"], budget["delta"], size)
    if "rows" in content:  # of a description
        multiplier = noise_multiplier(epsilon, delta, Sampling(num_steps=1))
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


def _spent(content: Content) -> Rows:
    parts = {
        "all together": content["privacy"],
        "of it, centers and scales": content.get("ranges", {}).get("privacy"),
        "on the sample, by itself": content.get("sample", {}).get("budget_of_sample"),
        "scores, on other records": content.get("evaluation", {}).get("privacy"),
    }
    lines = [
        [name, *(rounded_up(cost[parameter], 6) for parameter in ("epsilon", "delta"))]
        for name, cost in parts.items()
        if cost is not None
    ]
    return Rows(["for what", "epsilon", "delta"], lines)


def _of_model(content: Content, model: Model) -> dict[str, list[Block]]:
    parts: dict[str, list[Block]] = {
        "public": [_public(content, model)],
        "settings": [_settings(content)],
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
    ranges = content.get("ranges", {}).get("columns", {})
    kinds: dict[str, Any] = {**model.columns, model.target_name: model.target}
    if model.exposure is not None:
        kinds[model.exposure.column] = model.exposure
    lines = []
    for name, kind in kinds.items():
        known = "released privately" if name in ranges else "declared"
        shown, text = name, _meaning_of(kind)
        if name == model.target_name:
            shown += " (target)"
            if model.link == "log":
                exposure = model.exposure
                scale, of = kind.scale, ""
                if exposure is not None:
                    scale, of = scale / exposure.max, f" for one of {exposure.column}"
                text = f"amounts of about {digits(scale)}{of}"
        lines.append([shown, text, known])
    return Rows(["column", "what it holds", "how that is known"], lines)


def _meaning_of(kind: Any) -> str:
    if kind.categories:
        return f"categories: {_listed(kind.categories)}"
    if not isinstance(kind, Numeric):
        return f"an exposure up to {digits(kind.max)}"
    text = f"numbers around {digits(kind.center)}, give or take {digits(kind.scale)}"
    if kind.limit < math.inf:
        ends = (kind.center + side * kind.limit * kind.scale for side in (-1, 1))
        text += f", held within {' and '.join(map(digits, ends))}"
    return text


def _settings(content: Content) -> Rows:
    given = content["arguments"] | content["stats"]
    lines = [
        [name.replace("_", " "), _plain(entry)]
        for name, entry in given.items()
        if isinstance(entry, int | float | str) and name not in _SAID
    ]
    return Rows(["setting", ""], lines)


def _numbers(model: Model) -> Iterator[Block]:
    if 0 < len(model.columns) <= _MOST_PANELS:
        yield Picture(_saved.figure_of(model), "What each column adds")
    head, lines = _saved.numbers_of(model)
    if len(lines) > _MOST_LINES:
        yield Text(f"The first {_MOST_LINES} of {len(lines):,}; dpjax show has all.")
    yield Rows(head, lines[:_MOST_LINES])
    notes = [] if model.standard_errors is None else model.summary().sentences
    yield [*notes, *_saved.limits_of(model)]


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
