"""The package's shape: imports go one way, files are short and named by subject."""

import ast
from pathlib import Path

import pytest

import dpjax

ROOT = Path(dpjax.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
# Private modules that every layer may import.
SHARED = {path.stem for path in ROOT.glob("_*")}
GROUND = {"accounting", "estimators", "mechanisms", "losses", "parties", "constraints"}
# What each layer may import. The ground floor imports none of its own.
BELOW: dict[str, set[str]] = {name: set() for name in SHARED | GROUND}
BELOW["gradients"] = {"estimators"}
BELOW["batching"] = BELOW["audit"] = {"accounting"}
BELOW["transforms"] = GROUND - {"losses", "parties"} | {"gradients"}
BELOW["solvers.training"] = GROUND | {"batching", "gradients", "transforms"}
BELOW["solvers.statistics"] = BELOW["solvers.training"] | {"solvers.training"}
BELOW["solvers.papers"] = BELOW["solvers.statistics"] | {"solvers.statistics"}
BELOW["solvers.linear"] = BELOW["solvers.papers"]
BELOW["solvers.additive"] = BELOW["solvers.linear"] | {"solvers.linear"}
BELOW["solvers"] = {f"solvers.{name}" for name in ("training", "statistics", "papers")}
BELOW["solvers"] |= {"solvers.linear", "solvers.additive"}
BELOW["tuning"] = {"accounting", "estimators", "gradients", "mechanisms", "solvers"}
# The wing for tables, which only the last of these layers import.
LIBRARY = BELOW["solvers.training"] | BELOW["solvers"] | {"solvers"}
BELOW["tables.io"] = {"accounting", "batching"}
BELOW["tables"] = {"accounting", "losses", "tables.io"}
BELOW["tables.columns"] = {"tables.io"}
BELOW["datasets"] = {"tables.columns"}
BELOW["tables.describe"] = LIBRARY | {"tables", "tables.io", "tables.columns"}
BELOW["tables.models"] = BELOW["tables.describe"]
BELOW["tables.cli"] = BELOW["tables.describe"] | {"tables.describe", "tables.models"}
BELOW["tables.cli"] |= {"datasets"}
BELOW["models"] = BELOW["loading"] = {"tables.io", "tables.models"}
BELOW["sklearn"] = BELOW["tables.describe"] | {"tables.models"}
BELOW["__main__"] = {"tables.cli"}


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


def layer_of(modules):
    """The layer of a dotted name: its first two folders, where BELOW has them."""
    inner = ".".join(modules[:2])
    return inner if inner in BELOW else modules[0]


def is_module(parts):
    """Tells whether a dotted name is a file, which the wing for tables may import."""
    return parts[0] == "tables" and (ROOT.joinpath(*parts).with_suffix(".py")).is_file()


def violations(source, layer):
    """What a file imports beside names without underscore of the layers below it."""
    forbidden = []
    for node, target in imports_of(ast.parse(source)):
        parts = target.split(".")
        if parts[0] != "dpjax":
            continue
        other = layer_of(parts[1:]) if len(parts) > 1 else None
        if other is None:
            is_allowed = layer == "tables.cli"
        elif other in SHARED or other == layer:
            is_allowed = True
        else:
            is_open = not parts[-1].startswith("_") or is_module(parts[1:])
            is_allowed = other in BELOW[layer] and is_open
        if not is_allowed:
            forbidden.append(f"line {node.lineno}: {target}")
    return forbidden


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_are_short_and_named_by_subject_and_import_one_way(path):
    modules, text = modules_of(path), path.read_text()
    assert len(text.splitlines()) <= 700
    assert len(modules) <= 3
    banned = {"utils", "util", "common", "core", "base", "misc", "helpers"}
    assert path.stem.strip("_") not in banned
    assert text.startswith('"""'), "one line tells what the file is"
    if modules:  # dpjax/__init__.py lists the public names of all layers
        assert layer_of(modules) in BELOW, "a new layer: say here what lies below it"
        assert not violations(text, layer_of(modules))


@pytest.mark.parametrize(
    ("layer", "line"),
    [
        ("estimators", "from dpjax.accounting import noise_multiplier"),
        ("mechanisms", "from dpjax import estimators"),
        ("accounting", "import dpjax.mechanisms"),
        ("gradients", "from dpjax.transforms import privatize"),
        ("transforms", "from dpjax import solvers"),
        ("parties", "from dpjax.estimators import Clipping"),
        ("solvers", "from dpjax.estimators import _estimator"),
        ("solvers", "import dpjax"),
        ("estimators", "from dpjax.accounting._objective import objective_noise"),
        ("solvers", "from dpjax.accounting._objective import _check"),
        ("estimators", "from dpjax.solvers.statistics._scales import release_scales"),
        ("tables.cli", "from dpjax.solvers.statistics._scales import _sizes"),
    ],
)
def test_a_planted_import_is_found(layer, line):
    assert violations(line, layer)


TESTS = Path(__file__).parents[1]
# Tests that import private names of another layer than their folder's, at most 12.
EXCEPTIONS = {
    *("nightly/cli/test_fuzz.py", "nightly/test_processes.py"),
    "privacy/audit/test_planted_faults.py",
    *("privacy/replay/_replay.py", "privacy/replay/test_commands.py"),
    "privacy/replay/test_planted_faults.py",
    *("unit/models/test_export.py", "unit/models/test_model.py"),
    *("unit/test_jax_internals.py", "unit/transforms/test_privatize.py"),
}


def private_names(path):
    """Yields private names that a file of tests imports from a layer not its own."""
    folders = path.relative_to(TESTS).parts[:-1]
    inner = [name for name in folders if name not in ("unit", "privacy", "nightly")]
    layer = (inner or [path.stem.removeprefix("test_").split("_")[0]])[0]
    for _, target in imports_of(ast.parse(path.read_text())):
        package, *parts = target.split(".")
        is_private = any(x.startswith("_") and not x.endswith("__") for x in parts)
        is_own = layer in [part.strip("_") for part in parts]
        if package == "dpjax" and is_private and not is_own:
            yield target


def test_tests_import_private_names_in_the_folder_of_their_layer():
    imports = {path.relative_to(TESTS).as_posix(): path for path in TESTS.rglob("*.py")}
    imports = {name: [*private_names(path)] for name, path in imports.items()}
    new = {name: x for name, x in imports.items() if x and name not in EXCEPTIONS}
    assert not new, "test the public interface, or in the layer's own folder"
    assert all(imports[name] for name in EXCEPTIONS), "what imports none goes"
