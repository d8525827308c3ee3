"""Writes a page on a released model or description, to hand on.

Its text is in `report.md`: titles, paragraphs, lists, warnings and, in brackets, tables
and pictures. A paragraph or item is left out if a value that it names is missing. All
values follow from released files, public facts and the ledger.
"""

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from dp_accounting import UnsupportedDpEvent

from dpjax import _validate, accounting
from dpjax._rounding import as_decimal, claim, digits, rounded_up
from dpjax.accounting import PrivacyGuarantee, Sampling
from dpjax.accounting._subsampling import gaussian_event
from dpjax.tables import _pages
from dpjax.tables._pages import Block, Picture, Rows, Text, html_of
from dpjax.tables._statement import Statement
from dpjax.tables.cli import _settings, _terminal
from dpjax.tables.cli._ledger import Ledger, left_sentence, read_ledger
from dpjax.tables.cli._options import FROM_SYSTEM
from dpjax.tables.cli._outputs import MODEL, REPORT, rows_of_scores
from dpjax.tables.cli._saved import figure_of, limits_of, meaning, weights_of
from dpjax.tables.columns._kinds import Numeric, is_date, labels_of
from dpjax.tables.describe._description import Description, Row, costs_of, numbers_of
from dpjax.tables.io._untrusted import well_formed
from dpjax.tables.models._model import Model, load_model

Content = Mapping[str, Any]
_MOST_NAMES, _MOST_LINES, _MOST_PANELS = 12, 200, 40  # the most to show
_RATES = 0.001, 0.01, 0.1  # false positive rates
_SAID = "epsilon", "delta", "loss"  # shown apart from the settings
_DESCRIPTION = "description.json"
_ENDS = {"low": -math.inf, "high": math.inf}  # JSON lacks these, and NaN
_UNREADABLE = ArithmeticError, AttributeError, LookupError, TypeError, ValueError
_UNREADABLE += (RecursionError,)


def report(settings: _settings.ReportSettings) -> None:
    """Runs `dpjax report`: writes an HTML page on a released model or description."""
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
    rule = "RUN must be what dpjax train or describe has written"
    with well_formed(rule, path, _UNREADABLE):
        content = json.loads(path.read_bytes())
        released = _described(content) if model is None else model
        noun = "description"
        if model is not None:
            noun, own, privacy = "model", content["privacy"], model.privacy
            names = content["method"], content["data"], content["feature_names"]
            is_same = names == (model.method, model.data, [*model.feature_names])
            stated = own["epsilon"], own["delta"]
            if not is_same or stated != (privacy.epsilon, privacy.delta):
                raise ValueError(f"{REPORT} is of another run than {MODEL} beside it")
        title = f"Report on a private {noun} of {content['data']}"
        text = html_of(title, [*blocks_of(content, released, ledger)])
    _terminal.write_output(output, text.encode())


def _described(content: Mapping[str, Any]) -> Description:
    """Returns the `Description` of a table from `content`, its description.json."""
    rows = []
    for row in content["rows"]:
        ends = {k: _ENDS.get(k, math.nan) for k, x in row.items() if x is None}
        rows.append(Row(**row | ends))
    privacy = Statement.read(content["privacy"]).made()
    shares = {(x["column"], x["part"]): x["share"] for x in content["costs"]}
    names = "edges", "num_samples", "by", "level"
    given: Any = {name: content[name] for name in names}
    given |= {name: content.get(name) for name in ("sample_size", "weights")}
    if (unit := content.get("unit")) is not None:
        given |= {"unit": unit["column"], "records_per_unit": unit["records_per_unit"]}
    return Description(tuple(rows), shares=shares, privacy=privacy, **given)


def blocks_of(
    content: Content, released: Model | Description, ledger: Ledger | None
) -> Iterator[Block]:
    """Yields the titles, paragraphs, tables and pictures of a report.

    `content` is the JSON of the run (report.json or description.json), `released` its
    model or description, and `ledger` that of its table, if it is given.
    """
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
    content: Content,  # the JSON of the run
    released: Model | Description,
    privacy: PrivacyGuarantee,
    ledger: Ledger | None,  # of the table, if it is given
) -> dict[str, Any]:
    """Returns the values of the placeholders in the template `report.md`.

    A placeholder may be a condition: its value is "" if the condition holds, else
    missing, and then the paragraph is left out.
    """
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
        values["left"] = left_sentence(ledger.filter)
    if isinstance(released, Model):
        name, versions, columns = "train", released.versions or {}, released.columns
        values |= {"method": released.method, "use": meaning(released)}
        values["loss"] = content["loss"]
        options += f" --loss {content['loss']}"
    else:
        name, versions = "describe", {"dpjax": content["dpjax"]}
        columns = dict.fromkeys(row.column for row in released.rows)
    values["command"] = f"{name} {content['data']}{options}"
    values["columns"] = _listed(columns)
    values["versions"] = ", ".join(f"{k} {v}" for k, v in versions.items())
    values["verdict"], rows = scores.get("verdict"), rows_of_scores(scores)[1]
    quality = [f"{name} {model}, of a constant {x}" for name, model, x in rows[:2]]
    values["quality"] = "; ".join(quality) or None
    for name in [*scores.get("measures", {})][::-1]:
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
    """Returns a table and a plot of what the guarantee leaves to membership attacks."""
    columns = _RATES, privacy.tradeoff(_RATES), privacy.posterior(0.01, _RATES)
    lines = [[*map(_percent, line)] for line in zip(*columns, strict=True)]
    head = ['wrong ones with a "yes"', "right ones, at most", "sure, at most"]
    rates = np.linspace(0.0, 1.0, 101)
    both = np.stack([privacy.tradeoff(rates), rates], axis=1)
    shapes = {'share of wrong ones with a "yes"': _pages.Shape(rates, both)}
    figure = _pages.plot(shapes, ["at most", "a mere guess"], "share of right ones")
    return [Rows(head, lines), Picture(figure, 'Right candidates with a "yes"')]


def _with_event(content: Content, privacy: PrivacyGuarantee) -> PrivacyGuarantee:
    """Returns the guarantee with its `DpEvent`, if the run has Gaussian noise alone.

    The event, which no file has, gives tighter bounds on attacks. It is known if the
    noise multiplier in the run's JSON, `content`, for all steps or for each, costs the
    stated epsilon; otherwise `privacy` is returned as it is. The k records of a unit
    move a mean k times as far as one record. A sample has the delta(epsilon) of a batch
    without replacement, whatever the run releases (Balle et al. 2018, Theorem 9).
    """
    stats, sample = content.get("stats", {}), content.get("sample")
    multiplier, num_steps = stats.get("noise_multiplier"), stats.get("num_steps", 1)
    size = (content.get("unit") or {"records_per_unit": 1})["records_per_unit"]
    budget = content["privacy"] if sample is None else sample["budget_of_sample"]
    if budget["delta"] <= 0:
        return privacy
    epsilon, delta = budget["epsilon"], budget["delta"]
    known = []  # noise multipliers of one release for a unit
    if "rows" in content:  # a description
        known = [accounting.noise_multiplier(epsilon, delta, Sampling(num_steps=1))]
    for num in {1, num_steps} if multiplier else ():
        each, steps = multiplier / size, Sampling(num_steps=num)
        cost = accounting.noise_multiplier_to_epsilon(each, delta, steps)
        if math.isclose(cost, epsilon, rel_tol=1e-6):
            known.append(each / math.sqrt(num))
    if not known:
        return privacy
    drawn = Sampling(num_steps=1)
    if sample is not None:
        sizes = sample["num_records"], sample["max_records"]
        drawn = Sampling(1, num_samples=sizes[0], batch_size=sizes[1])
    event = gaussian_event(known[0], drawn)
    return dataclasses.replace(privacy, dp_event=event)


def _of_model(content: Content, model: Model) -> dict[str, list[Block]]:
    """Returns a model's tables and pictures for a report, by name in `report.md`."""
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
        parts["measures"] = [Rows(*rows_of_scores(scores))]
    if lines := content.get("comparison"):
        head = [name.replace("_", " ") for name in lines[0]]
        rows = [[*map(_plain, line.values())] for line in lines]
        parts["comparison"] = [Rows(head, rows)]
    return parts


def _public(content: Content, model: Model) -> Rows:
    """Returns a table of each column's range or categories, declared or released."""
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
    """Returns in words what a column is declared to hold: categories or numbers."""
    if kind.categories:
        return f"categories: {_listed(labels_of(kind))}"
    if not isinstance(kind, Numeric):
        return f"an exposure up to {digits(kind.max)}"
    if is_date(kind):
        return f"dates, {kind.text()}"
    text = f"numbers around {digits(kind.center)}, give or take {digits(kind.scale)}"
    if kind.limit < math.inf:
        text += f", held within {' and '.join(map(digits, kind.range))}"
    return text


def _numbers(model: Model) -> Iterator[Block]:
    """Yields a picture and a table of a model's coefficients or curves, and notes."""
    if 0 < len(model.columns) <= _MOST_PANELS:
        yield Picture(figure_of(model), "What each column adds")
    head, lines = weights_of(model)
    if len(lines) > _MOST_LINES:
        yield Text(f"The first {_MOST_LINES} of {len(lines):,}; dpjax show has all.")
    yield Rows(head, lines[:_MOST_LINES])
    notes = [] if model.standard_errors is None else model.summary().sentences
    yield [*notes, *limits_of(model)]


def _listed(names: Iterable[Any]) -> str:
    shown = [*map(str, names)]
    more = len(shown) - _MOST_NAMES
    return ", ".join(shown[:_MOST_NAMES]) + (f" and {more:,} more" if more > 0 else "")


def _percent(share: float) -> str:
    return f"{rounded_up(100 * as_decimal(share), 3)}%"


def _plain(entry: Any) -> str:
    if isinstance(entry, float):
        return digits(entry)
    return "" if entry is None else str(entry)
