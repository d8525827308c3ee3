"""Export of a model to an expression in SQL, or to an ONNX graph.

With z = (x - center) / scale, a column of numbers x adds

    at_center + sum_j rate_j (clip(z, low_j, high_j) - clip(0, low_j, high_j)),

to the score. This is a line or a curve, constant beyond its ends. A cell that is
missing, no number, or beyond the range of float32 in z counts as z = 0. A category adds
its weight.

SQL reads cells of any type as texts, as `predict` does: without the blanks around them,
and by value if they are numbers. SQLite and DuckDB share few functions, and none of
them matches patterns, so that the expression cuts a text into its sign, its digits and
the rest.
"""

import itertools
import math
import re
import sys
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from dpjax import _validate
from dpjax._lazy import optional
from dpjax._rounding import claim
from dpjax.tables.columns._kinds import Categorical, dates_of
from dpjax.tables.io._texts import number_of
from dpjax.tables.io._untrusted import printable
from dpjax.tables.models._terms import LARGEST, MEANS, Link, Terms

if TYPE_CHECKING:
    from dpjax.tables.models._model import Model

Format = Literal["onnx", "sql"]
_FARTHEST = 3.4028235677973366e38  # from here on float32 rounds to infinity
_BLANKS = "".join(filter(str.isspace, map(chr, range(0x3001))))  # as `str.strip` has
_TRUTH = ("true", "false")
_TRUTHS = {0.0: ("false", "False", "FALSE"), 1.0: ("true", "True", "TRUE")}
_ONNX_VERSIONS = {"": 20, "ai.onnx.ml": 2}  # operator sets; 20 has RegexFullMatch
_IR_VERSION = 9
_ONE = "1.0e0"
_TABLE = "record"
_DIGITS = "'0123456789'"
_REALS = "'real', 'DOUBLE', 'FLOAT'"
_INTEGERS = "'integer', 'BOOLEAN', 'TINYINT', 'SMALLINT', 'INTEGER', 'BIGINT'"
# For the column c# with the number #, t# is the text, u# the text without its sign, r#
# the rest after the first digits, f# the rest after the digits of a fraction, and e#
# the digits of an exponent.
_STEPS = (
    "TRIM(CAST(c# AS VARCHAR), blanks) AS t#",
    "CASE WHEN SUBSTR(t#, 1, 1) IN ('+', '-') THEN SUBSTR(t#, 2) ELSE t# END AS u#",
    f"LTRIM(u#, {_DIGITS}) AS r#",
    f"CASE SUBSTR(r#, 1, 1) WHEN '.' THEN LTRIM(SUBSTR(r#, 2), {_DIGITS}) ELSE r# END"
    " AS f#",
    "CASE WHEN SUBSTR(f#, 1, 1) NOT IN ('e', 'E') THEN ''"
    " WHEN SUBSTR(f#, 2, 1) IN ('+', '-') THEN SUBSTR(f#, 3)"
    " ELSE SUBSTR(f#, 2) END AS e#",
)
_VALUE = (
    "CAST(u# AS DOUBLE) * CASE SUBSTR(t#, 1, 1) WHEN '-' THEN -1.0e0 ELSE 1.0e0 END"
)
_HAS_EXPONENT = f"(e# <> '' AND LTRIM(e#, {_DIGITS}) = '')"
_IS_NUMBER = (
    f"(f# = '' OR {_HAS_EXPONENT}) AND LENGTH(u#) - LENGTH(f#) >"
    " CASE SUBSTR(r#, 1, 1) WHEN '.' THEN 1 ELSE 0 END"
)
_OF_NUMBERS = (
    f"CASE WHEN TYPEOF(c#) IN ({_REALS}, {_INTEGERS}) THEN CAST(c# AS DOUBLE)"
    f" WHEN LOWER(t#) = 'true' THEN {_ONE} WHEN LOWER(t#) = 'false' THEN 0.0e0"
    f" WHEN {_IS_NUMBER} THEN {_VALUE} END AS x#"
)
# A category is compared by its text k#, and with an exponent by its value x#. A whole
# number in k# is exact to the last digit; 250.1 and 250.10 are two codes.
_HAS_INTEGER = (
    "LENGTH(r#) < LENGTH(u#) AND"
    " (SUBSTR(u#, 1, 1) <> '0' OR LENGTH(u#) = 1 + LENGTH(r#))"
)
_IS_INTEGER = f"{_HAS_INTEGER} AND r# IN ('', '.', '.0')"
_IS_WITH_EXPONENT = (
    f"{_HAS_INTEGER} AND SUBSTR(r#, 1, 1) IN ('.', 'e') AND {_HAS_EXPONENT} AND"
    " LENGTH(e#) IN (2, 3) AND LENGTH(f#) = 2 + LENGTH(e#)"
)
_INTEGER = (
    "CASE WHEN SUBSTR(t#, 1, 1) = '-' AND SUBSTR(u#, 1, 1) <> '0' THEN '-' ELSE '' END"
    " || SUBSTR(u#, 1, LENGTH(u#) - LENGTH(r#))"
)
_OF_LEVELS = (
    f"CASE WHEN TYPEOF(c#) IN ({_REALS}) THEN NULL WHEN LOWER(t#) = 'true' THEN '1'"
    f" WHEN LOWER(t#) = 'false' THEN '0' WHEN {_IS_INTEGER} THEN {_INTEGER}"
    " ELSE t# END AS k#,"
    f" CASE WHEN TYPEOF(c#) IN ({_REALS}) THEN CAST(c# AS DOUBLE)"
    f" WHEN {_IS_WITH_EXPONENT} THEN {_VALUE} END AS x#"
)


class Numbers(NamedTuple):
    """The share of a column of numbers in the score, linear in pieces of z."""

    name: str
    center: float
    scale: float
    at_center: float
    ramps: tuple[tuple[float, float, float], ...]  # (low, high, rate) of each piece

    def value(self, z: float) -> float:
        """Returns the contribution to the score at z, in scales from the center."""
        return self.at_center + sum(
            rate * (min(max(z, low), high) - min(max(0.0, low), high))
            for low, high, rate in self.ramps
        )


class Levels(NamedTuple):
    """The share of a column of categories in the score: a category's weight or 0."""

    name: str
    weights: dict[str, float]  # weights of the usual spellings
    texts: dict[str, float]  # weights of categories that are compared as texts
    # Weights of categories that texts may equal by value: whole numbers, and numbers
    # written with an exponent.
    numbers: dict[int | float, float]
    codes: dict[float, float]  # of 01 and 0.5, which only numeric cells equal by value


class Parts(NamedTuple):
    """A model to export: center + scale * mean(intercept + sum(columns)) * exposure."""

    columns: list[Numbers | Levels]
    intercept: float
    link: Link  # from score to mean
    exposure: Numbers | None
    center: float  # of the target
    scale: float  # of the target
    classes: tuple[str, ...]  # if there are several, else (); each has its `Parts`
    comments: list[str]  # two printable lines, on the target and the guarantee

    @property
    def inputs(self) -> dict[str, bool]:
        """The names of the columns that are read, with whether each holds numbers."""
        read = [*self.columns, self.exposure]
        return {x.name: isinstance(x, Numbers) for x in read if x is not None}


def parts_of(model: "Model", terms: Terms) -> Parts:
    """Returns what an export writes of a model: columns, intercept, link and units."""
    # Weights and curves (`terms`) must be finite, and names UTF-8 without NUL.
    numbers = [terms.slopes, terms.heights]
    is_finite = all(np.isfinite(each).all() for each in numbers)
    _validate.require(is_finite, "params", numbers, "finite in a model to export")
    rule = "none in a model to export: neither SQL nor ONNX reads all their formats"
    dates = sorted(dates_of(model.columns))
    _validate.require(not dates, "columns of dates", dates, rule)
    columns: list[Numbers | Levels] = []
    place = 0
    for name, kind in model.columns.items():
        if isinstance(kind, Categorical):
            weights = kind.weights(terms.slopes[place:]).tolist()
            columns.append(_levels(name, kind, weights))
        else:
            at_center = float(terms.curve(place, np.zeros(1))[0])
            of_column = float(kind.center), float(kind.scale), at_center
            ramps = _ramps(terms, place, float(kind.limit))
            columns.append(Numbers(name, *of_column, ramps))
        place += len(kind.names(name))
    exposure = None
    if (share := model.exposure) is not None:
        exposure = Numbers(share.column, 0.0, float(share.max), 0.0, ((0.0, 1.0, 1.0),))
        same = model.columns.get(share.column)
        is_number = same is None or not same.categories
        rule = "a column of numbers in a model to export"
        _validate.require(is_number, "exposure", share.column, rule)
    privacy, target = model.privacy, model.target_name
    if model.positive is not None:
        target = f"the probability of {target} = {model.positive}"
    elif classes := model.target.categories:
        target += f" = {', '.join(classes)}"
    stated = claim(privacy.epsilon, privacy.delta)
    comments = [
        printable(f"Predicts {target}: {model.method} of {model.data}."),
        printable(f"Privacy: {stated}. {privacy.description}"),
    ]
    score = columns, float(terms.slopes[-1]), model.link, exposure
    units = float(model.target.center), float(model.target.scale)
    classes = model.target.categories if model.link == "softmax" else ()
    parts = Parts(*score, *units, classes, comments)
    levels = (x.weights for x in columns if isinstance(x, Levels))
    for text in itertools.chain(parts.inputs, classes, *levels):
        written = text.replace("\0", "").encode("utf-8", "ignore").decode()
        rule = "UTF-8 text without NUL, and not empty, to be exported"
        _validate.require(text == written != "", "a name or category", text, rule)
    return parts


def _ramps(
    terms: Terms, place: int, limit: float
) -> tuple[tuple[float, float, float], ...]:
    """Returns a feature's curve or line in pieces (low, high, slope), for an export."""
    # `place` is the feature's index; ends and `limit` are in scales from the center.
    end = min(limit, LARGEST if terms.knots else _FARTHEST)
    knots = terms.knots if place in terms.smooth else ()
    ends = [-end, *(float(knot) for knot in knots if -end < knot < end), end]
    slope = float(terms.slopes[place])
    if not knots:
        return ((-end, end, slope),)
    heights = np.interp(ends, knots, terms.heights[terms.smooth.index(place)])
    rates = slope + np.diff(heights) / np.diff(ends)
    return tuple(zip(ends[:-1], ends[1:], rates.tolist(), strict=True))


def _levels(name: str, kind: Categorical, weights: list[float]) -> Levels:
    """Returns weights by the texts and numbers that match a category, for an export."""
    # Category 1 matches 1, 1.0 and true; category 01 the text 01 and the number 1.
    # `weights` has a weight for each category, in order.
    spellings = {text: weights[at] for text, at in _spellings(kind).items()}
    levels = Levels(name, spellings, {}, {}, {})
    texts = map(str.strip, kind.categories)
    for place, (text, weight) in enumerate(zip(texts, weights, strict=True)):
        number = number_of(text)
        if not np.isfinite(number):
            levels.texts[text] = weight
            continue
        exact = Decimal(text) if text.lower() not in _TRUTH else Decimal(number)
        if exact == exact.to_integral_value():
            (match,) = kind.indices(np.array([str(int(exact))], object))
            if match == place:
                levels.numbers[int(exact)] = weight
                continue
        levels.texts[text] = weight
        (match,) = kind.indices(np.array([number]))
        levels.codes[number] = weights[match]
        if text == repr(number):
            levels.numbers[number] = weight
    return levels


def _spellings(kind: Categorical) -> dict[str, int]:
    """Returns indices of categories by each spelling, such as 1, 1.0 and true for 1."""
    # ONNX compares texts as they are written, so that it needs all spellings.
    texts: dict[str, None] = {}
    for category in kind.categories:
        text = category.strip()
        number = number_of(text)
        written = [text, *_TRUTHS.get(number, ())]
        if np.isfinite(number):
            written.append(repr(number))
        if np.isfinite(number) and number == int(number):
            written += [str(int(number)), f"{int(number)}.0"]
        texts |= dict.fromkeys(written)
    indices = kind.indices(np.array([*texts], object)).tolist()
    return {text: at for text, at in zip(texts, indices, strict=True) if at >= 0}


def sql_file(parts: Parts, *more: Parts) -> bytes:
    """Returns a model, given by its columns, link and units, as one SQL expression.

    In a database it computes `Model.predict` for a row of the table `record`, or the
    most probable class: each has its parts. The text is UTF-8.
    """
    names = [*parts.inputs]
    is_fine = len({name.casefold() for name in names}) == len(names)
    _validate.require(is_fine, "columns", names, "distinct without case, for SQL")
    columns = {part.name: part for part in (parts.exposure, *parts.columns) if part}
    places = {name: place for place, name in enumerate(columns)}
    # The table is named, because SQLite takes an unknown name in quotes for a text.
    cells = "".join(
        f",\n  {_TABLE}.{_quoted(name, chr(34))} AS c{place}"
        for name, place in places.items()
    )
    queries = [f"SELECT {_text(_BLANKS)} AS blanks{cells}"]
    # Each step is a query that adds one expression for each column to the last query.
    of_columns = []
    for name, part in columns.items():
        steps = [*_STEPS, _OF_NUMBERS if isinstance(part, Numbers) else _OF_LEVELS]
        steps = steps if _is_by_value(part) else steps[:1]
        of_columns.append([step.replace("#", str(places[name])) for step in steps])
    for step in itertools.zip_longest(*of_columns):
        added = "".join(f",\n  {addition}" for addition in step if addition)
        queries.append(f"SELECT *{added} FROM step{len(queries) - 1}")
    scores = []
    for place, output in enumerate([parts, *more]):
        terms = [_added(part, places[part.name]) for part in output.columns]
        score = "\n + ".join([_number(output.intercept), *terms])
        scores.append(f"{score} AS score{place or ''}")
    factor = _ONE
    if parts.exposure is not None:
        factor = _added(parts.exposure, places[parts.exposure.name])
    last = f"step{len(queries) - 1}"
    queries.append(f"SELECT {', '.join(scores)}, {factor} AS factor FROM {last}")
    mean = "score"
    if parts.link == "logit":
        mean = f"{_ONE} / ({_ONE} + EXP(-score))"
    elif parts.link == "log":
        cases = "".join(
            f" WHEN score {sign} {_number(math.log(mean))} THEN {_number(mean)}"
            for sign, mean in zip("<>", MEANS, strict=True)
        )
        mean = f"CASE{cases} ELSE EXP(score) END"
    center, scale = _number(parts.center), _number(parts.scale)
    value = f"{center} + {scale} * factor * ({mean})"
    if parts.classes:
        value = _most_probable(parts.classes)
    comments = "".join(f"-- {line}\n" for line in parts.comments)
    # Without MATERIALIZED SQLite would inline each step, and compute it many times.
    named = (f"step{i} AS MATERIALIZED ({query})" for i, query in enumerate(queries))
    steps = ",\n".join(named)
    last = f"step{len(queries) - 1}"
    return f"{comments}(WITH {steps}\nSELECT {value} FROM {last})\n".encode()


def _most_probable(classes: tuple[str, ...]) -> str:
    """Returns as SQL the name of the class with the largest score."""
    scores = [f"score{place or ''}" for place in range(len(classes))]
    cases = "".join(
        f" WHEN {' AND '.join(f'{own} >= {x}' for x in scores[place + 1 :])}"
        f" THEN {_text(classes[place])}"
        for place, own in enumerate(scores[:-1])
    )
    return f"CASE{cases} ELSE {_text(classes[-1])} END"


def _is_by_value(part: Numbers | Levels) -> bool:
    return isinstance(part, Numbers) or bool(part.numbers or part.codes)


def _added(part: Numbers | Levels, place: int) -> str:
    """Returns as SQL what column number `place`, a curve or weights, adds to scores."""
    x = f"x{place}"
    if isinstance(part, Levels):
        return _of_category(part, place)

    def at(z: float) -> float:
        most = sys.float_info.max
        return min(max(part.center + part.scale * z, -most), most)

    start, end = part.ramps[0][0], part.ramps[-1][1]
    z = f"({x} - {_number(part.center)}) / {_number(part.scale)}"
    cases = [(start, _number(part.value(start)))] if start > -_FARTHEST else []
    for low, high, rate in part.ramps:
        near = min(max(0.0, low), high)  # the base point that loses fewest digits
        moved = f"{z} - {_number(near)}" if near else z
        line = f"{_number(part.value(near))} + {_number(rate)} * ({moved})"
        cases.append((high, line))
    then = cases.pop()[1] if end == _FARTHEST else _number(part.value(end))
    if cases:
        lines = "".join(
            f"\n  WHEN {z} <= {_number(high)} THEN {line}" for high, line in cases
        )
        then = f"CASE{lines}\n  ELSE {then} END"
    # NULL and NaN lie in no range, so that they take the value at the center.
    ends = f"{_number(at(-_FARTHEST))} AND {_number(at(_FARTHEST))}"
    return (
        f"CASE WHEN {x} BETWEEN {ends} THEN {then} ELSE {_number(part.at_center)} END"
    )


def _of_category(part: Levels, place: int) -> str:
    """Returns as SQL the weight of the category in column number `place`, 0 if none."""
    is_text = f"k{place} = " if _is_by_value(part) else f"t{place} = "
    is_value = f"x{place} = "
    cases = []
    for value, weight in part.codes.items():
        typed = f"TYPEOF(c{place}) IN ({_REALS}, {_INTEGERS}) AND ("
        text = f" OR {is_text}'{int(value)}'" if value == int(value) else ""
        cases.append((f"{typed}{is_value}{_number(value)}{text})", weight))
    for text, weight in part.texts.items():
        cases.append((is_text + _text(text), weight))
    for value, weight in part.numbers.items():
        if isinstance(value, int):
            cases.append((f"{is_text}'{value}'", weight))
        if abs(value) <= sys.float_info.max and float(value) == value:
            cases.append((is_value + _number(value), weight))
    lines = "".join(f"\n  WHEN {case} THEN {_number(x)}" for case, x in cases)
    return f"CASE{lines}\n  ELSE 0.0e0 END"


def _number(value: float) -> str:
    """Returns a number with an exponent, which SQL reads as a double, not a decimal."""
    text = repr(float(value))
    text = text if "e" in text else f"{text}e0"
    return f"({text})" if text[0] == "-" else text


def _text(text: str) -> str:
    """Returns a literal in which no line begins as a spreadsheet's formula."""
    return re.sub(r"([\r\n])(?=[=+@-])", r"\1' || '", _quoted(text, "'"))


def _quoted(text: str, mark: str) -> str:
    return f"{mark}{text.replace(mark, 2 * mark)}{mark}"


def onnx_file(parts: Parts, *more: Parts) -> bytes:
    """Returns a model, given by its columns, link and units, as an ONNX graph in bytes.

    Its inputs are the columns (n,), of float64 or text, and its float64 output, (n,) or
    (n, K), has the predictions of `Model.predict`.
    """
    onnx = optional("onnx", "an export to ONNX needs onnx", "export")
    _validate.require(len(parts.columns) > 0, "columns", [], "one or more, for ONNX")
    output = "prediction"
    # Names of nodes begin with the output's name. No input's name may begin with it.
    while any(name.startswith(output) for name in parts.inputs):
        output += "_"
    graph, helper = _Graph(onnx, output), onnx.helper
    node, constant = graph.node, graph.constant
    outputs = [parts, *more]
    columns = zip(*(x.columns for x in outputs), strict=True)
    intercept = constant(_by_output([x.intercept for x in outputs]))
    mean = node("Sum", intercept, *itertools.starmap(graph.added, columns))
    if parts.classes:
        mean = node("Softmax", mean, axis=1)
    elif parts.link == "logit":
        mean = node("Sigmoid", mean)
    elif parts.link == "log":
        mean = node("Exp", graph.clipped(mean, *map(math.log, MEANS)))
    if parts.exposure is not None:
        mean = node("Mul", mean, graph.added(parts.exposure))
    scaled = [node("Mul", mean, constant(parts.scale)), constant(parts.center)]
    graph.nodes.append(helper.make_node("Add", scaled, [output]))

    def tensor(name: str, is_number: bool, *more: int) -> Any:
        types = onnx.TensorProto
        kind = types.DOUBLE if is_number else types.STRING
        return helper.make_tensor_value_info(name, kind, ["n", *more])

    shape = [len(parts.classes)] if parts.classes else []
    made = tensor(output, True, *shape)
    ends = [tensor(*each) for each in parts.inputs.items()], [made]
    made = helper.make_model(
        helper.make_graph(graph.nodes, "dpjax", *ends, graph.constants),
        opset_imports=[helper.make_opsetid(*each) for each in _ONNX_VERSIONS.items()],
        ir_version=_IR_VERSION,
        producer_name="dpjax",
        doc_string="\n".join(parts.comments),
    )
    onnx.checker.check_model(made)
    return made.SerializeToString(deterministic=True)


class _Graph:
    """An ONNX graph in the making; names begin with the name of its output."""

    def __init__(self, onnx: Any, output: str):
        self.onnx = onnx  # the package, which is imported for exports alone
        self.output = output
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, values: Any, kind: Any = np.float64) -> str:
        name = f"{self.output}_constant_{len(self.constants)}"
        array = np.array(values, kind)
        self.constants.append(self.onnx.numpy_helper.from_array(array, name))
        return name

    def node(self, kind: str, *inputs: str, **more: Any) -> str:
        name = f"{self.output}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(kind, inputs, [name], **more))
        return name

    def clipped(self, value: str, low: Any, high: Any) -> str:
        above = self.node("Max", value, self.constant(low))
        return self.node("Min", above, self.constant(high))

    def added(self, part: Numbers | Levels, *more: Any) -> str:
        """Adds nodes for a column's share in scores; returns their output's name."""
        node, constant = self.node, self.constant
        if isinstance(part, Levels):
            return self._of_category(part, *more)
        moved = node("Sub", part.name, constant(part.center))
        z = node("Div", moved, constant(part.scale))
        is_near = node("Less", node("Abs", z), constant(_FARTHEST))
        z = node("Where", is_near, z, constant(0.0))
        low, high, _ = np.transpose(part.ramps)
        rates = _by_output([np.array(x.ramps)[:, 2] for x in (part, *more)])
        sizes = self.clipped(node("Unsqueeze", z, constant([1], np.int64)), low, high)
        from_center = node("Sub", sizes, constant(np.clip(0.0, low, high)))
        at_center = constant(_by_output([x.at_center for x in (part, *more)]))
        return node("Add", node("MatMul", from_center, constant(rates)), at_center)

    def _of_category(self, part: Levels, *more: Levels) -> str:
        """Adds nodes for the weight of a category; returns the name of their output."""
        node, count = self.node, len(part.weights)
        places = {"values_int64s": [*range(count)], "default_int64": count}
        places |= {"keys_strings": [*part.weights], "domain": "ai.onnx.ml"}
        index = node("LabelEncoder", part.name, **places)
        is_other = node("Equal", index, self.constant(count, np.int64))
        is_odd = node("RegexFullMatch", part.name, pattern=_odd_cells(part))
        to = self.onnx.TensorProto.INT64
        is_odd = node("Cast", node("And", is_other, is_odd), to=to)
        # The index of an odd cell (`_odd_cells`) is out of range, so that the runtime
        # stops with an error that has this name.
        index = node("Add", index, is_odd)
        name = f"categories of {part.name} without blanks, as the model writes them"
        weights = _by_output([[*x.weights.values(), 0.0] for x in (part, *more)])
        return node("Gather", self.constant(weights), index, name=name)


def _by_output(values: list[Any]) -> np.ndarray:
    """Returns values of one output as they are, or of K with a last axis (K,)."""
    return np.stack(values, axis=-1) if len(values) > 1 else np.array(values[0])


def _odd_cells(part: Levels) -> str:
    """Returns a regular expression of cells, such as +1, that stop ONNX's runtime."""
    # They may be other spellings of a category, which ONNX would take as no category.
    blank = "".join(rf"\x{{{ord(character):x}}}" for character in _BLANKS)
    odd = [f"[{blank}]+[^{blank}].*", f".*[^{blank}][{blank}]+"]
    if part.numbers:
        digits, exponent = "(0|[1-9][0-9]*)", r"(\.[0-9]*[eE]|e)[+-][0-9]{2,3}"
        odd += [rf"\+{digits}", "-0", rf"[+-]?{digits}(\.0?|{exponent})"]
        truths = enumerate(("false", "true"))
        odd += [f"(?i:{text})" for value, text in truths if value in part.numbers]
    return f"(?s){'|'.join(odd)}"
