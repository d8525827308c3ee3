"""A model as an ONNX file, in float64."""

import math
from typing import Any

import numpy as np

from dpjax import _validate
from dpjax.models._export import FARTHEST, Levels, Numbers, Parts
from dpjax.models._terms import MEANS

_VERSIONS = {"": 15, "ai.onnx.ml": 2}  # of operators; old ones, which all runtimes have
_IR_VERSION = 8


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
    graph = _Graph(parts)
    output = graph.prediction(parts)

    def tensor(name: str, is_number: bool) -> Any:
        kind = TensorProto.DOUBLE if is_number else TensorProto.STRING
        return helper.make_tensor_value_info(name, kind, ["n"])

    made = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "dpjax",
            [tensor(name, kind) for name, kind in parts.inputs.items()],
            [tensor(output, True)],
            graph.constants,
        ),
        opset_imports=[helper.make_opsetid(*each) for each in _VERSIONS.items()],
        ir_version=_IR_VERSION,
        producer_name="dpjax",
        doc_string="\n".join(parts.comments),
    )
    checker.check_model(made)
    return made.SerializeToString(deterministic=True)


class _Graph:
    """Nodes and constants, each under a name that no column has."""

    def __init__(self, parts: Parts):
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.prefix = "prediction"
        while any(name.startswith(self.prefix) for name in parts.inputs):
            self.prefix += "_"

    def constant(self, values: Any, kind: Any = np.float64) -> str:
        from onnx import numpy_helper

        name = f"{self.prefix}_constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(values, kind), name))
        return name

    def node(self, kind: str, *inputs: str, name: str = "", **more: Any) -> str:
        from onnx import helper

        name = name or f"{self.prefix}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **more))
        return name

    def clipped(self, value: str, low: Any, high: Any) -> str:
        raised = self.node("Max", value, self.constant(low))
        return self.node("Min", raised, self.constant(high))

    def added(self, part: Numbers | Levels) -> str:
        """Returns what a column adds, but for what it adds at its center."""
        if isinstance(part, Levels):
            count = len(part.weights)
            place = self.node(
                "LabelEncoder",
                part.name,
                domain="ai.onnx.ml",
                keys_strings=[*part.weights],
                values_int64s=[*range(count)],
                default_int64=count,
            )
            weights = self.constant([*part.weights.values(), 0.0])
            return self.node("Gather", weights, place)
        moved = self.node("Sub", part.name, self.constant(part.center))
        z = self.node("Div", moved, self.constant(part.scale))
        is_near = self.node("Less", self.node("Abs", z), self.constant(FARTHEST))
        z = self.node("Where", is_near, z, self.constant(0.0))
        column = self.node("Unsqueeze", z, self.constant([1], np.int64))
        low, high, rates = np.transpose(part.ramps)
        at_zero = self.constant(np.clip(0.0, low, high))
        sizes = self.node("Sub", self.clipped(column, low, high), at_zero)
        return self.node("MatMul", sizes, self.constant(rates))

    def prediction(self, parts: Parts) -> str:
        """Returns the name of the output."""
        fixed = sum(p.at_center for p in parts.columns if isinstance(p, Numbers))
        start = self.constant(parts.intercept + fixed)
        mean = self.node("Sum", start, *map(self.added, parts.columns))
        if parts.link == "logit":
            mean = self.node("Sigmoid", mean)
        elif parts.link == "log":
            mean = self.node("Exp", self.clipped(mean, *map(math.log, MEANS)))
        if parts.exposure is not None:
            mean = self.node("Mul", mean, self.added(parts.exposure))
        scaled = self.node("Mul", mean, self.constant(parts.scale))
        return self.node("Add", scaled, self.constant(parts.center), name=self.prefix)
