"""Code of the pages runs, and prints what they show; skeletons keep what they say."""

import doctest
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpjax.mechanisms import BandedToeplitz
from tests import registry
from tests.nightly.test_docs import DOCS, GUIDES, load

CODE = re.compile(r"```python\n([^`]*)```")
TEXT = r"\n\n```text\n([^`]*)```"
# Sizes of a page that takes long, and those of its test, which prints other numbers.
SMALL = {
    "transformer.md": {
        "32, 256, 6, 8\n": "8, 16, 1, 2\n",
        "= 30_000, 500, 2_048\n": "= 300, 2, 20\n",
    },
    "lora.md": {"public, 600)": "public, 2)", "16, 512, 8": "16, 20, 2"},
}


def examples():
    for path in GUIDES:
        text = path.read_text()
        tabs = dict(re.findall(r":::\{tab-item\} (.+)\n```python\n([^`]*)```", text))
        # A block of text behind code is what it prints.
        blocks = re.findall(f"{CODE.pattern}(?:{TEXT})?", text)
        for name in tabs or [""]:
            others = {code for tab, code in tabs.items() if tab != name}
            code = "\n".join(
                block + "".join(f"#> {line}\n" for line in said.splitlines())
                for block, said in blocks
                if block not in others
            )
            yield pytest.param(path, code, id=f"{path.name} {name}".strip())
        if "```diff\n" in text:
            yield pytest.param(path, without_privacy(text), id=f"{path.name} plain")


def without_privacy(text):
    """The code before the block of `diff`, as it was before this change."""
    private, diff, behind = re.split(r"```diff\n([^`]*)```", text)
    code, said = "\n".join(CODE.findall(private)), re.match(TEXT, behind)
    for hunk in diff.split("@@\n")[1:]:
        new, old = (
            "".join(
                line[1:] or "\n" for line in hunk.splitlines(True) if line[0] != sign
            )
            for sign in "-+"
        )
        assert code.count(new) == 1, new
        code = code.replace(new, old)
    added = len(re.findall(r"^\+.", diff, re.M))
    assert f" {added} lines" in " ".join(text.split()), added
    said = said[1] if said else ""
    return code + "".join(f"#> {line}\n" for line in said.splitlines())


@pytest.mark.parametrize(("path", "code"), list(examples()))
def test_examples_of_a_page_run(path, code, capsys):
    if "import equinox" in code:
        pytest.importorskip("equinox")
    for large, small in SMALL.get(path.name, {}).items():
        assert code.count(large) == 1
        code = code.replace(large, small)
    # optax itself mixes dtypes: adam's count is an int32.
    with jax.numpy_dtype_promotion("standard"):
        exec(compile(code, str(path), "exec"), {})
    # Printed by one line, which says what, or in a loop, after which it is said.
    expected, is_loop = [], False
    for line in code.splitlines():
        if comment := re.match(r"print\(.*\)  # (.*)", line):
            expected.append(comment[1])
        elif line.startswith("#> "):
            expected.append(line[3:])
        elif is_loop and line.startswith("# "):
            expected.append(line[2:])
            continue
        is_loop = line.startswith("    print(")
    printed = capsys.readouterr().out.splitlines()
    assert printed == expected or (path.name in SMALL and printed)


@pytest.mark.parametrize("name", registry.BATCHINGS)
def test_loop_of_the_guide_draws_what_is_accounted_for(name, monkeypatch):
    """The printed loop, at a small size and with each batching, counted by record."""
    n, num_steps, one = 14, 9, registry.BATCHINGS[name]
    tabs = {one.id: one.values[1] for one in examples() if "own_loop.md" in one.id}
    names = ["Flax NNX", "Flax Linen", "Equinox", "plain JAX"]
    assert [*tabs] == [f"own_loop.md {name}" for name in names]
    code = tabs["own_loop.md plain JAX"].partition("predictions = ")[0]
    names = "num_samples, num_steps, batch_size = "
    for line, ours in (
        (f"{names}8_000, 150, 256", f"{names}{n}, {num_steps}, 3"),
        ("batching = dpjax.batching.Poisson(batch_size)", "batching = one"),
    ):
        assert code.count(f"{line}\n") == 1
        code = code.replace(line, ours)
    seen, draw = np.zeros((num_steps + 1, n), int), type(one).draw

    def count(step, rows, mask):
        np.add.at(seen[step], rows, ~mask)

    def counting(self, state, data):
        batch, mask, following = draw(self, state, (data, jnp.arange(n)))
        jax.debug.callback(count, state.step, batch[1], mask)
        return batch[0], mask, following

    monkeypatch.setattr(type(one), "draw", counting)
    names = {"one": one}
    with jax.numpy_dtype_promotion("standard"):
        exec(compile(code, "own_loop.md", "exec"), names)
        once_more = (names[x] for x in ("params", "state", "batches", "data"))
        names["train_step"](*once_more)
    jax.effects_barrier()
    priced, most = one.sampling(n, num_steps), seen.sum(axis=0).max()
    pattern = one.sampling(n, num_steps, strategy=BandedToeplitz(num_steps, (1.0,)))
    assert not seen[num_steps].any()  # a step too many
    assert seen.max() == 1
    assert 1 <= most <= pattern.max_participations
    if priced.sampling_prob == 1:
        assert most <= priced.num_steps
    for column in seen.T:
        assert (np.diff(np.flatnonzero(column)) >= pattern.min_separation).all()
    if not one.pads and name != "WithoutReplacement":
        assert most == priced.num_steps


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
    samples, estimator = jnp.zeros((5, 2)), make(3.0)
    bound = estimator.sensitivity(5, 2).linf
    worst = []
    for bad in (jnp.nan, jnp.inf, -jnp.inf, 3e38, -3e38, 1e-45):
        moved = estimator(samples.at[0].set(bad)) - estimator(samples.at[0].set(-3e38))
        worst.append(float(abs(moved).max()))
    assert 0.99 * bound < max(worst) <= bound
    with pytest.raises(ValueError, match="threshold"):
        make(0.0)


def test_skeletons_of_a_mechanism_and_a_solver_have_their_laws(tmp_path, key):
    draw = skeleton("mechanism", tmp_path).logistic
    noise = np.asarray(draw(key, jnp.zeros(20_000), scale=1.0))
    for scale in (1.0, 2 / 3, 3 / 2):  # false alarm 1e-4; the key is fixed
        pvalue = scipy.stats.kstest(noise / scale, "logistic").pvalue
        assert (pvalue > 1e-4) == (scale == 1.0)
    solve = skeleton("solver", tmp_path).dp_histogram
    bins, own = jnp.array([0, 1, 1, 7, -3]), jax.random.key(0)
    solution = solve(bins, key=own, epsilon=1e6, num_bins=3)
    np.testing.assert_allclose(solution.params, [1, 2, 0], atol=1e-3)
    assert solution.stats["scale"] == 2e-6
