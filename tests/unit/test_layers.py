"""The package's shape: imports go one way, files are short and named by subject."""

import ast
import importlib
from pathlib import Path

import pytest

import dpjax

ROOT = Path(dpjax.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
# Private modules that every layer may import.
SHARED = {
    *(
        "_csv",
        "_default_delta",
        "_files",
        "_keys",
        "_lazy",
        "_pages",
        "_processes",
        "_progress",
        "_public_sets",
        "_reservoir",
        "_rounding",
    ),
    *(
        "_shapes",
        "_sharding",
        "_store",
        "_summary",
        "_sums",
        "_tables",
        "_texts",
        "_tree",
        "_trial_counts",
        "_types",
    ),
    *("_untrusted", "_validate", "_version"),
}

# What each layer may import. The ground floor, estimators, mechanisms and accounting,
# imports none of its own.
BELOW = {
    **{name: set() for name in SHARED},
    "accounting": set(),
    "estimators": set(),
    "mechanisms": set(),
    "losses": set(),
    "datasets": set(),
    "parties": set(),
    "gradients": {"estimators"},
    "batching": {"accounting"},
    "loading": {"accounting", "batching"},
    "constraints": set(),
    "transforms": {
        "accounting",
        "constraints",
        "estimators",
        "gradients",
        "mechanisms",
    },
    "solvers": {
        "accounting",
        "batching",
        "constraints",
        "estimators",
        "gradients",
        "losses",
        "mechanisms",
        "parties",
        "transforms",
    },
}
BELOW["models"] = BELOW["solvers"] | {"datasets", "solvers"}
BELOW["sklearn"] = BELOW["solvers"] | {"models", "solvers"}
BELOW["tuning"] = {"accounting", "estimators", "mechanisms", "solvers"}
BELOW["audit"] = {"accounting"}
BELOW["cli"] = BELOW["solvers"] | {"datasets", "models", "solvers"}
# Private modules that some layers share.
BELOW["_scales"] = {"mechanisms"}
BELOW["_describe"] = {"accounting", "batching", "datasets", "solvers"}
BELOW["cli"].add("_describe")
for layer in ("cli", "sklearn"):
    BELOW[layer].add("_scales")


def modules_of(path):
    """The dotted name of a file as a tuple, without `dpjax` and `__init__`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def imports_of(tree):
    """All (node, dotted target) of a file; `from a import b` gives a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield node, name.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}"
            for name in node.names:
                yield node, f"{node.module}.{name.name}"


def violations(source, layer):
    """What a file of a layer imports and must not.

    Of the layers below it a file takes what is public, and what their `_shared.py` has.
    """
    found = []
    for node, target in imports_of(ast.parse(source)):
        parts = target.split(".")
        if parts[0] != "dpjax":
            continue
        if len(parts) == 1:
            is_allowed = layer == "cli"
        elif parts[1] in SHARED or parts[1] == layer:
            is_allowed = True
        else:
            within = parts[3:] if parts[2:3] == ["_shared"] else parts[2:]
            is_open = not any(part.startswith("_") for part in within)
            is_allowed = parts[1] in BELOW[layer] and is_open
        if not is_allowed:
            found.append(f"line {node.lineno}: {target}")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path):
    modules = modules_of(path)
    if modules:  # dpjax/__init__.py lists the public names of all layers
        assert modules[0] in BELOW, "a new layer: say in this test what lies below it"
        assert not violations(path.read_text(), modules[0])


@pytest.mark.parametrize(
    ("layer", "line"),
    [
        ("estimators", "from dpjax.accounting import noise_multiplier"),
        ("mechanisms", "from dpjax import estimators"),
        ("accounting", "import dpjax.mechanisms"),
        ("gradients", "from dpjax.transforms import privatize"),
        ("transforms", "from dpjax import solvers"),
        ("parties", "from dpjax.estimators import Clipping"),
        ("solvers", "from dpjax.estimators._norm import NormBounded"),
        ("solvers", "from dpjax.estimators import _estimator"),
        ("solvers", "import dpjax"),
        ("estimators", "from dpjax.accounting._shared import objective_noise"),
        ("solvers", "from dpjax.accounting._shared import _check"),
        ("estimators", "from dpjax._scales import release_scales"),
        ("cli", "from dpjax._scales import _sizes"),
    ],
)
def test_a_planted_import_is_found(layer, line):
    assert violations(line, layer)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_are_short_and_named_by_subject(path):
    assert len(path.read_text().splitlines()) <= 700
    assert len(modules_of(path)) <= 3
    banned = {"utils", "util", "common", "core", "base", "misc", "helpers"}
    assert path.stem.strip("_") not in banned
    assert path.read_text().startswith('"""'), "one line tells what the file is"


@pytest.mark.parametrize(
    "path", sorted(ROOT.rglob("_shared.py")), ids=lambda path: path.parent.name
)
def test_what_is_shared_is_taken_by_another_layer_and_not_public(path):
    layer = modules_of(path)[0]
    shared = importlib.import_module(f"dpjax.{layer}._shared")
    public = importlib.import_module(f"dpjax.{layer}").__all__
    taken = {
        name
        for file in FILES
        if modules_of(file)[:1] != (layer,)
        for _, target in imports_of(ast.parse(file.read_text()))
        for package, _, name in [target.rpartition(".")]
        if package == shared.__name__
    }
    assert taken == set(shared.__all__)
    assert not taken & set(public)
