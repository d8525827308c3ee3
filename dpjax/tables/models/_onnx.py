"""A model as an ONNX file, in float64."""

import math
from typing import Any

import numpy as np

from dpjax import _validate
from dpjax.tables.models._export import BLANKS, FARTHEST, Levels, Numbers, Parts
from dpjax.tables.models._terms import MEANS

_VERSIONS = {"": 20, "ai.onnx.ml": 2}  # of operators; 20 has patterns of texts
_IR_VERSION = 9


def onnx_file(parts: Parts) -> bytes:
    """Returns the file: an input of shape (n,) for each column, one output.

    Raises:
        ValueError: If the model reads no column.
        ImportError: Without the package onnx.
    """
    try:
        from onnx import TensorProto, checker, helper
    except ImportError as error:
        message = 'an export to ONNX needs onnx: pip install "dpjax[export]"'
        raise ImportError(message) from error
    _validate.require(len(parts.columns) > 0, "columns", [], "not empty, for ONNX")
    output = "prediction"
    while any(name.startswith(output) for name in parts.inputs):
        output += "_"
    graph = _Graph(output)
    node, constant = graph.node, graph.constant
    fixed = sum(p.at_center for p in parts.columns if isinstance(p, Numbers))
    terms = map(graph.added, parts.columns)
    mean = node("Sum", constant(parts.intercept + fixed), *terms)
    if parts.link == "logit":
        mean = node("Sigmoid", mean)
    elif parts.link == "log":
        mean = node("Exp", graph.clipped(mean, *map(math.log, MEANS)))
    if parts.exposure is not None:
        mean = node("Mul", mean, graph.added(parts.exposure))
    scaled = [node("Mul", mean, constant(parts.scale)), constant(parts.center)]
    graph.nodes.append(helper.make_node("Add", scaled, [output]))

    def tensor(name: str, is_number: bool) -> Any:
        kind = TensorProto.DOUBLE if is_number else TensorProto.STRING
        return helper.make_tensor_value_info(name, kind, ["n"])

    inputs, outputs = (
        [tensor(*each) for each in parts.inputs.items()],
        [tensor(output, True)],
    )
    made = helper.make_model(
        helper.make_graph(graph.nodes, "dpjax", inputs, outputs, graph.constants),
        opset_imports=[helper.make_opsetid(*each) for each in _VERSIONS.items()],
        ir_version=_IR_VERSION,
        producer_name="dpjax",
        doc_string="\n".join(parts.comments),
    )
    checker.check_model(made)
    return made.SerializeToString(deterministic=True)


class _Graph:
    """Nodes and constants, whose names begin with that of the output."""

    def __init__(self, output: str):
        self.output = output
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, values: Any, kind: Any = np.float64) -> str:
        from onnx import numpy_helper

        name = f"{self.output}_constant_{len(self.constants)}"
        array = np.array(values, kind)
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def node(self, kind: str, *inputs: str, **more: Any) -> str:
        from onnx import helper

        name = f"{self.output}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **more))
        return name

    def clipped(self, value: str, low: Any, high: Any) -> str:
        above = self.node("Max", value, self.constant(low))
        return self.node("Min", above, self.constant(high))

    def added(self, part: Numbers | Levels) -> str:
        """Returns the term of a column, minus its value at the center."""
        node, constant = self.node, self.constant
        if isinstance(part, Levels):
            return self._of_category(part)
        moved = node("Sub", part.name, constant(part.center))
        z = node("Div", moved, constant(part.scale))
        is_near = node("Less", node("Abs", z), constant(FARTHEST))
        z = node("Where", is_near, z, constant(0.0))
        low, high, rates = np.transpose(part.ramps)
        sizes = self.clipped(node("Unsqueeze", z, constant([1], np.int64)), low, high)
        from_center = node("Sub", sizes, constant(np.clip(0.0, low, high)))
        return node("MatMul", from_center, constant(rates))

    def _of_category(self, part: Levels) -> str:
        from onnx import TensorProto

        node, count = self.node, len(part.weights)
        places = {"values_int64s": [*range(count)], "default_int64": count}
        places |= {"keys_strings": [*part.weights], "domain": "ai.onnx.ml"}
        index = node("LabelEncoder", part.name, **places)
        is_other = node("Equal", index, self.constant(count, np.int64))
        is_odd = node("RegexFullMatch", part.name, pattern=_odd_cells(part))
        is_odd = node("Cast", node("And", is_other, is_odd), to=TensorProto.INT64)
        # An odd cell is beyond the weights, so that the runtime stops with this name.
        index = node("Add", index, is_odd)
        name = f"categories of {part.name} without blanks, as the model writes them"
        weights = self.constant([*part.weights.values(), 0.0])
        return node("Gather", weights, index, name=name)


def _odd_cells(part: Levels) -> str:
    """Returns a pattern of texts that may be a category, but in other characters.

    ONNX compares texts, but neither removes blanks nor reads numbers in texts.
    """
    blank = "".join(rf"\x{{{ord(character):x}}}" for character in BLANKS)
    odd = [f"[{blank}]+[^{blank}].*", f".*[^{blank}][{blank}]+"]
    if part.numbers:
        digits = "(0|[1-9][0-9]*)"
        forms = [
            r"\.0?",
            r"(\.[0-9]*[eE]|e)[+-][0-9]{2,3}",
        ]
        odd += [rf"\+{digits}", "-0", rf"[+-]?{digits}({'|'.join(forms)})"]
        odd += [
            f"(?i:{x})" for i, x in enumerate(("false", "true")) if i in part.numbers
        ]
    return f"(?s){'|'.join(odd)}"
