"""A model as an ONNX file, in float64."""

import math
from typing import Any

import numpy as np

from dpjax import _validate
from dpjax.models._export import BLANKS, FARTHEST, Levels, Numbers, Parts
from dpjax.models._terms import MEANS

_VERSIONS = {"": 20, "ai.onnx.ml": 2}  # of operators; 20 has patterns of texts
_IR_VERSION = 9


def onnx_file(parts: Parts) -> bytes:
    """Returns the file: an input of shape (n,) for each column, one output.

    Raises:
        ValueError: If the model reads no column.
        ImportError: Without the package onnx.
    """
    try:
        from onnx import TensorProto, checker, helper, numpy_helper
    except ImportError as error:
        message = 'an export to ONNX needs onnx: pip install "dpjax[export]"'
        raise ImportError(message) from error
    _validate.require(len(parts.columns) > 0, "columns", [], "not empty, for ONNX")
    nodes: list[Any] = []
    constants: list[Any] = []
    output = "prediction"
    while any(name.startswith(output) for name in parts.inputs):
        output += "_"

    def constant(values: Any, kind: Any = np.float64) -> str:
        name = f"{output}_constant_{len(constants)}"
        constants.append(numpy_helper.from_array(np.array(values, kind), name))
        return name

    def node(kind: str, *inputs: str, **more: Any) -> str:
        name = f"{output}_{len(nodes)}"
        nodes.append(helper.make_node(kind, inputs, [name], **more))
        return name

    def clipped(value: str, low: Any, high: Any) -> str:
        return node("Min", node("Max", value, constant(low)), constant(high))

    def added(part: Numbers | Levels) -> str:
        """Returns the term of a column, minus its value at the center."""
        if isinstance(part, Levels):
            count = len(part.weights)
            places = {"values_int64s": [*range(count)], "default_int64": count}
            places |= {"keys_strings": [*part.weights], "domain": "ai.onnx.ml"}
            index = node("LabelEncoder", part.name, **places)
            is_other = node("Equal", index, constant(count, np.int64))
            is_odd = node("RegexFullMatch", part.name, pattern=_odd_cells(part))
            is_odd = node("Cast", node("And", is_other, is_odd), to=TensorProto.INT64)
            # Beyond the weights, so that the runtime stops with this name.
            index = node("Add", index, is_odd)
            name = f"categories of {part.name} without blanks, as the model writes them"
            weights = constant([*part.weights.values(), 0.0])
            return node("Gather", weights, index, name=name)
        moved = node("Sub", part.name, constant(part.center))
        z = node("Div", moved, constant(part.scale))
        is_near = node("Less", node("Abs", z), constant(FARTHEST))
        z = node("Where", is_near, z, constant(0.0))
        low, high, rates = np.transpose(part.ramps)
        sizes = clipped(node("Unsqueeze", z, constant([1], np.int64)), low, high)
        from_center = node("Sub", sizes, constant(np.clip(0.0, low, high)))
        return node("MatMul", from_center, constant(rates))

    fixed = sum(p.at_center for p in parts.columns if isinstance(p, Numbers))
    mean = node("Sum", constant(parts.intercept + fixed), *map(added, parts.columns))
    if parts.link == "logit":
        mean = node("Sigmoid", mean)
    elif parts.link == "log":
        mean = node("Exp", clipped(mean, *map(math.log, MEANS)))
    if parts.exposure is not None:
        mean = node("Mul", mean, added(parts.exposure))
    scaled = node("Mul", mean, constant(parts.scale))
    nodes.append(helper.make_node("Add", [scaled, constant(parts.center)], [output]))

    def tensor(name: str, is_number: bool) -> Any:
        kind = TensorProto.DOUBLE if is_number else TensorProto.STRING
        return helper.make_tensor_value_info(name, kind, ["n"])

    inputs = [tensor(*each) for each in parts.inputs.items()]
    made = helper.make_model(
        helper.make_graph(nodes, "dpjax", inputs, [tensor(output, True)], constants),
        opset_imports=[helper.make_opsetid(*each) for each in _VERSIONS.items()],
        ir_version=_IR_VERSION,
        producer_name="dpjax",
        doc_string="\n".join(parts.comments),
    )
    checker.check_model(made)
    return made.SerializeToString(deterministic=True)


def _odd_cells(part: Levels) -> str:
    """Returns a pattern of texts that may be a category, but in other characters.

    ONNX can compare texts, and neither removes blanks nor reads numbers in texts.
    """
    blank = "".join(rf"\x{{{ord(character):x}}}" for character in BLANKS)
    odd = [f"[{blank}]+[^{blank}].*", f".*[^{blank}][{blank}]+"]
    if part.numbers:
        whole = "(0|[1-9][0-9]*)"
        forms = [
            r"\.",
            r"\.[0-9]*0",
            r"\.[0-9]{16,}",
            r"(\.[0-9]*[eE]|e)[+-][0-9]{2,3}",
        ]
        odd += [rf"\+{whole}(\.[0-9]*)?", "-0", rf"[+-]?{whole}({'|'.join(forms)})"]
        odd += [
            f"(?i:{x})" for i, x in enumerate(("false", "true")) if i in part.numbers
        ]
    return f"(?s){'|'.join(odd)}"
