"""The public contract: names, signatures and docstrings."""

import inspect
from pathlib import Path

import pytest

import dpjax
import dpjax.sklearn

# By name, as in the snapshot: dpjax, and its packages; sklearn is not imported by it.
LAYERS = filter(inspect.ismodule, (getattr(dpjax, name) for name in dpjax.__all__))
PACKAGES = sorted([dpjax, dpjax.sklearn, *LAYERS], key=lambda x: x.__name__)
SNAPSHOT = Path(__file__).parent / "signatures.txt"
# Plain records, which the functions that make or take them explain, and aliases.
RECORDS = {
    *("dpjax.ADD_OR_REMOVE_ONE", "dpjax.REPLACE_ONE"),
    *("dpjax.estimators.Estimator", "dpjax.solvers.Solution"),
}


def parameters(function):
    """Names in order; those after * are keyword-only, and "=" marks a default."""
    parts, has_star = [], False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name.startswith("_"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not has_star:
            parts, has_star = [*parts, "*"], True
        parts.append(parameter.name + "=" * (parameter.default is not parameter.empty))
    return " ".join(parts)


def methods(kind):
    """Public functions of a class, its own and those of private classes before it."""
    public = [getattr(x, name) for x in PACKAGES for name in x.__all__]
    members = {}
    for owner in reversed(kind.__mro__):
        if owner is kind or not any(owner is one for one in public):
            members |= vars(owner)
    for name, member in sorted(members.items()):
        function = getattr(member, "__func__", member)  # of a class or static method
        is_public = name == "__call__" or not name.startswith("_")
        module = getattr(function, "__module__", None) or ""
        if is_public and inspect.isfunction(function) and module.startswith("dpjax"):
            yield name, function


def signatures():
    """A line for every public function, class and method."""
    lines = []
    for package in PACKAGES:
        for name in package.__all__:
            value = getattr(package, name)
            path = f"{package.__name__}.{name}"
            if inspect.isfunction(value):
                lines.append(f"{path}({parameters(value)})")
            elif inspect.isclass(value) and value.__module__.startswith("dpjax"):
                lines.append(f"{path}({parameters(value)})")
                lines += [f"{path}.{x}({parameters(f)})" for x, f in methods(value)]
    return "\n".join(lines) + "\n"


def test_signatures_are_those_of_the_snapshot():
    # A change of the contract: `python -m tests.unit.test_public_api` writes it anew.
    assert signatures().splitlines() == SNAPSHOT.read_text().splitlines()


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_names_have_docstrings_with_an_example_or_a_reference(package):
    assert len(package.__all__) == len(set(package.__all__))
    for name in package.__all__:
        assert not name.startswith("_")
        value = getattr(package, name)
        if inspect.ismodule(value):
            assert value.__doc__, name
        elif f"{package.__name__}.{name}" not in RECORDS:
            documentation = inspect.getdoc(value) or ""
            assert "Example:" in documentation or "Reference:" in documentation, name


def test_names_are_imported_when_they_are_read():
    assert set(dir(dpjax)) >= {*dpjax.__all__, "__version__"}
    with pytest.raises(AttributeError, match="'dpjax' has no attribute 'dp_adam'"):
        dpjax.dp_adam  # noqa: B018


if __name__ == "__main__":
    SNAPSHOT.write_text(signatures())
