"""Skeletons to copy: the code on their pages does what the pages say."""

import doctest

import jax.numpy as jnp
import numpy as np
import pytest

from tests.nightly.test_docs import DOCS, load


def skeleton(name, folder):
    """Imports the code of a page by the page's name."""
    text = (DOCS / "contribute" / f"{name}.md").read_text()
    path, code = folder / f"{name}.py", text.partition("```{code-block} python\n")[2]
    path.write_text(code.partition("```\n")[0])
    return load(path)


@pytest.mark.parametrize("name", ["estimator", "mechanism", "solver"])
def test_examples_of_a_skeleton_run(tmp_path, name):
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    result = doctest.testmod(skeleton(name, tmp_path), optionflags=flags)
    assert result.attempted
    assert not result.failed


def test_skeleton_of_an_estimator_keeps_its_sensitivity(tmp_path):
    make = skeleton("estimator", tmp_path).SaturatedMean
    samples = jnp.zeros((5, 2))
    estimator = make(3.0)
    bound = estimator.sensitivity(5, 2).linf
    worst = []
    for bad in (jnp.nan, jnp.inf, -jnp.inf, 3e38, -3e38, 1e-45):
        moved = estimator(samples.at[0].set(bad)) - estimator(samples.at[0].set(-3e38))
        worst.append(float(abs(moved).max()))
    assert 0.99 * bound < max(worst) <= bound
    with pytest.raises(ValueError, match="threshold"):
        make(0.0)


def test_skeleton_of_a_mechanism_has_its_law(tmp_path, key):
    logistic = skeleton("mechanism", tmp_path).logistic
    noise = np.sort(np.asarray(logistic(key, jnp.zeros(20_000), scale=1.0)))
    ranks = (np.arange(noise.size) + 0.5) / noise.size

    def distance(scale):
        return np.abs(1 / (1 + np.exp(-noise / scale)) - ranks).max()

    # Kolmogorov: beyond 2.23 / sqrt(n) with probability 1e-4; the key is fixed.
    limit = 2.23 / np.sqrt(noise.size)
    assert distance(1.0) < limit < min(distance(2 / 3), distance(3 / 2))
    with pytest.raises(ValueError, match="scale"):
        logistic(key, jnp.zeros(2), scale=-1.0)
    with pytest.raises(ValueError, match="value"):
        logistic(key, jnp.zeros(2, int), scale=1.0)


def test_skeleton_of_a_solver_counts(tmp_path, key):
    solve = skeleton("solver", tmp_path).dp_histogram
    bins = jnp.array([0, 1, 1, 7, -3])
    solution = solve(bins, key=key, epsilon=1e6, num_bins=3)
    np.testing.assert_allclose(solution.params, [1, 2, 0], atol=1e-3)
    assert solution.stats["scale"] == 2e-6
    for bad, name in (({"num_bins": 0}, "num_bins"), ({"epsilon": 0.0}, "epsilon")):
        arguments = {"key": key, "epsilon": 1.0, "num_bins": 3} | bad
        with pytest.raises(ValueError, match=name):
            solve(bins, **arguments)
    with pytest.raises(ValueError, match=r"bins\.dtype"):
        solve(jnp.zeros(3), key=key, epsilon=1.0, num_bins=3)
