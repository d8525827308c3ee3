"""The transforms under attack: no claim is refuted, and each shows what it should."""

import inspect

import pytest

from dpjax import estimators, transforms
from dpjax.audit import _transforms
from dpjax.estimators import Estimator, Mean

# What these return is as private as what they are given.
NOT_RELEASED = {
    *("aggregate", "average_iterates", "average_params", "project"),
    "scale_by_dp_adam",
}

# The share of its claim that a case shows at least, with all its releases; 0.85 of
# those that are not here.
SHOWN = {
    "privatize_trimmed_mean": 0.55,
    "privatize_trimmed_mean_smooth": 0.1,
    "privatize_correlated_cyclic": 0.6,
    "frank_wolfe": 0.7,
    "peel": 0.55,
    "peel_laplace": 0.55,
}

each = pytest.mark.parametrize("name", _transforms.BUILDERS)


def test_every_transform_that_releases_has_a_case():
    for name in transforms.__all__:
        if inspect.isfunction(getattr(transforms, name)) and name not in NOT_RELEASED:
            assert any(case.startswith(name) for case in _transforms.BUILDERS), name


def test_privatize_has_a_case_for_every_estimator():
    private = {
        member
        for member in vars(estimators).values()
        if inspect.isclass(member) and issubclass(member, Estimator)
    } - {Estimator, Mean}
    words = [case.removeprefix("privatize_") for case in _transforms.BUILDERS]
    names = {word.replace("_", "") for word in words}
    assert {member.__name__.lower() for member in private} <= names


@pytest.mark.quick(1)
@each
def test_a_few_releases_do_not_refute_the_claim(name, few_releases, recorded):
    case = _transforms.BUILDERS[name]()
    assert case.name == name
    assert recorded[name].is_of(case), "run `python -m benchmarks guarantees --audit`"
    assert few_releases(case).epsilon <= case.privacy.epsilon


@pytest.mark.audit
@each
def test_all_releases_do_not_refute_the_claim(name, key):
    case = _transforms.BUILDERS[name]()
    claim, shown = case.privacy.epsilon, case.audit(key=key).epsilon
    assert SHOWN.get(name, 0.85) * claim <= shown <= claim
