"""The messages of the library's errors, read from its code; values stand as dots."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_GAP = "…"
# Of `dpjax._validate`: what they say of each argument that they are called with.
_RULES = {
    "positive": "positive and finite",
    "non_negative": "non-negative and finite",
    "probability": "strictly between 0 and 1",
    "count": "an integer of at least 1",
}


def table() -> str:
    """Returns a table of all messages with words of their own, a row a module."""
    rows = ["| module | messages |", "| --- | --- |"]
    for path in sorted((ROOT / "dpjax").rglob("*.py")):
        tree = ast.parse(path.read_text())
        if found := dict.fromkeys(messages(tree)):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            texts = "<br>".join(text.replace("|", r"\|") for text in found)
            rows.append(f"| `{name}` | {texts} |")
    return "\n".join(rows) + "\n"


def messages(tree: ast.AST) -> Iterator[str]:
    """Yields the messages of a module's errors, in the order of its code."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            text = _text(node.exc.args[0]) if node.exc.args else _GAP
        elif isinstance(node, ast.Call) and len(node.args) >= 4:
            if ast.unparse(node.func).rpartition(".")[2] != "require":
                continue
            text = f"{_text(node.args[1])} must be {_text(node.args[3])}, got {_GAP}."
        elif isinstance(node, ast.Call):
            rule = _RULES.get(ast.unparse(node.func).removeprefix("_validate."))
            names = [one.arg for one in node.keywords if one.arg] if rule else []
            yield from (f"`{one} must be {rule}, got {_GAP}.`" for one in names)
            continue
        else:
            continue
        if sum(word.isalpha() for word in text.split()) > 3:
            yield f"`{' '.join(text.replace('`', '').split())}`"


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    return _GAP
