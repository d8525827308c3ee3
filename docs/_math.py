"""Formulas as MathML, which browsers draw by themselves: no script, no network."""

from docutils import nodes
from latex2mathml.converter import convert


def mathml(tex: str, *, is_block: bool = False) -> str:
    """Returns a formula of TeX as MathML.

    Raises:
        ValueError: where it has a command that the converter does not know.
    """
    shown = convert(tex, display="block" if is_block else "inline")
    if "\\" in shown:
        raise ValueError(f"no MathML for all of {tex}")
    return shown


def inline(self, node: nodes.math) -> None:
    """Writes a formula of a line of text."""
    self.body.append(mathml(node.astext()))
    raise nodes.SkipNode


def block(self, node: nodes.math_block) -> None:
    """Writes a formula that stands by itself."""
    self.body.append(f'<div class="math">{mathml(node.astext(), is_block=True)}</div>')
    raise nodes.SkipNode
