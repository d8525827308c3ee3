"""The solvers under attack: no claim is refuted, and each shows what it should."""

import inspect

import pytest

from dpjax import solvers
from dpjax.audit import _solvers

NON_PRIVATE = {"robust_gradient_descent"}  # it says so
NO_RELEASES = {"printed_epsilon"}

# The share of its claim that a case shows at least, with all its releases.
SHOWN = {
    "dp_mean": 0.85,
    "dp_mean_trimmed": 0.55,
    "dp_gradient_descent": 0.85,
    "dp_gradient_descent_disjoint": 0.85,
    "dp_gradient_descent_poisson": 0.5,
    "dp_gradient_descent_without_replacement": 0.5,
    "dp_gradient_descent_trimmed": 0.3,
    "dp_gradient_descent_cyclic": 0.6,
    "dp_gradient_descent_bins": 0.5,
    "dp_gradient_descent_epochs": 0.85,
    "dp_gradient_descent_users": 0.85,
    "dp_frank_wolfe": 0.85,
    "dp_frank_wolfe_composed": 0.55,
    "dp_lasso": 0.85,
    "dp_iterative_hard_thresholding": 0.5,
    "dp_iterative_hard_thresholding_pure": 0.55,
    "dp_sparse_linear_regression": 0.55,
    "dp_sparse_linear_regression_scaled": 0.5,
    "dp_l1_regression": 0.9,
    "dp_quantile": 0.75,
    "dp_center_and_scale": 0.6,
    "dp_additive_model": 0.25,
    "dp_linear_model": 0.6,
    "dp_linear_model_constant": 0.85,
    "dp_linear_model_intercept": 0.5,
    "dp_linear_model_weights": 0.6,
    "dp_linear_model_offsets": 0.55,
    "dp_linear_model_exposures": 0.25,
    "dp_linear_model_outputs": 0.25,
    "dp_linear_model_features": 0.3,
    "dp_objective_perturbation": 0.7,
    "dp_sample_and_aggregate": 0.7,
    "dp_multiparty_gradient_descent": 0.2,
    "dp_multiparty_objective_perturbation": 0.1,
}

each = pytest.mark.parametrize("name", _solvers.BUILDERS)


def test_every_private_solver_has_a_case():
    for name in solvers.__all__:
        if (
            inspect.isfunction(getattr(solvers, name))
            and name not in NON_PRIVATE | NO_RELEASES
        ):
            assert name in _solvers.BUILDERS


@pytest.mark.quick(1)
@each
def test_a_few_releases_do_not_refute_the_claim(name, few_releases, recorded):
    case = _solvers.BUILDERS[name]()
    assert case.name == name
    assert recorded[name].is_of(case), "run `python -m benchmarks guarantees --audit`"
    assert few_releases(case).epsilon <= case.privacy.epsilon


@pytest.mark.audit
@each
def test_all_releases_do_not_refute_the_claim(name, key):
    case = _solvers.BUILDERS[name]()
    claim, shown = case.privacy.epsilon, case.audit(key=key).epsilon
    assert SHOWN[name] * claim <= shown <= claim


def test_parties_that_are_simulated_release_the_same_for_the_same_key(key):
    case = _solvers.BUILDERS["dp_multiparty_gradient_descent"]()
    first, second = (case.release(key, case.data) for _ in range(2))
    assert first == second
    assert len(first) == 2
