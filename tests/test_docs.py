"""The site: every public name has its place, links lead somewhere, examples run."""

import ast
import doctest
import importlib
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from benchmarks import coverage, intervals, plots, record, winners
from benchmarks.audits import findings
from benchmarks.comparison import Numbers
from benchmarks.figures import page as figures
from benchmarks.speed import page as speed
from benchmarks.speed.command import results
from benchmarks.utility import page as utility
from benchmarks.utility import predictions
from dpjax import batching
from tests import registry
from tests.test_public_api import PACKAGES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(
    path
    for path in DOCS.rglob("*.md")
    if not {"_build", "generated"} & set(path.relative_to(DOCS).parts)
)
GUIDES = sorted(path for path in PAGES if "```python\n" in path.read_text())
SKELETONS = DOCS / "contribute" / "skeletons"


def load(path):
    """Imports a file by its path, as the site does and readers of a skeleton will."""
    name = f"docs_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def api():
    return load(DOCS / "_api.py")


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_public_name_is_on_a_page(api, package):
    pages = {one.__name__: api.page(one) for one in api.packages()}
    assert package.__name__ in pages
    for name in package.__all__:
        if inspect.ismodule(getattr(package, name)):
            assert f"{package.__name__}.{name}" in pages
            continue
        home = api.home(package, name)
        entry = rf"^\.\. auto\w+:: {re.escape(home)}\.{name}$"
        shown = api.name_page(importlib.import_module(home), name)
        assert len(re.findall(entry, shown, re.MULTILINE)) == 1
        assert f"`{home}.{name}`" in pages[package.__name__]


def test_the_reference_has_every_public_name_once(api):
    listed = re.findall(r"\{py:obj\}`~([\w.]+)`", (DOCS / "api.md").read_text())
    assert len(listed) == len(set(listed))
    assert set(listed) == {
        f"{api.home(package, name)}.{name}"
        for package in PACKAGES
        for name in package.__all__
        if not inspect.ismodule(getattr(package, name))
    }


def test_docstrings_link_names_and_no_arguments(api):
    targets = api.targets()
    for known in ("dp_mean", "solvers.dp_mean", "Clipping", "dpjax.robust_grad"):
        assert targets[known].split(".")[-1] == known.split(".")[-1]
    assert targets["Clipping.sensitivity"] == "dpjax.estimators.Clipping.sensitivity"
    assert targets["dpjax.estimators"] == "dpjax.estimators"
    assert not {"load", "gamma", "project", "key"} & targets.keys()


def test_pages_are_of_every_package(api):
    assert {one.__name__ for one in PACKAGES} <= {
        one.__name__ for one in api.packages()
    }


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_and_included_files_exist(path):
    copies = load(DOCS / "_copies.py")
    text = path.read_text()
    written = {"tables": {"utility_means", "utility_sets", "estimators", "papers"}}
    written["tables"] |= {"packages", "tuning", "predictions", "intervals", "messages"}
    written["tables"] |= {"proofs"}
    targets = [target for _, _, target in copies.LINK.findall(text)]
    targets += re.findall(r"^```\{(?:literal)?include\} (\S+)$", text, re.MULTILINE)
    targets += re.findall(r"^:link: (\S+)$", text, re.MULTILINE)
    for target in targets:
        target = target.partition("#")[0]
        if not target or re.match(r"[a-z]+:", target):
            continue
        file = (path.parent / target).resolve()
        parts = file.relative_to(DOCS).parts
        if parts[0] != "generated":
            assert file.exists() or file.with_suffix(".md").exists(), target
        elif parts[1] == "api":
            assert file.stem in {one.__name__ for one in PACKAGES}, target
        elif parts[1] == "tables":
            assert file.stem in written["tables"], target
        else:
            assert parts[1] in copies.PAGES.values(), target


def test_links_of_the_repository_are_rewritten(tmp_path):
    copies = load(DOCS / "_copies.py")
    source = copies.ROOT / "benchmarks" / "page.md"
    text = "[a](README.md#gpu) [b](plots) [c](#here) [d](__init__.py)"
    shown = copies.rewritten(text, source, DOCS / "generated")
    there = "../../benchmarks/__init__.py"
    assert shown == f"[a](speed.md#gpu) b [c](#here) [d]({there})"
    with pytest.raises(FileNotFoundError, match=r"page\.md links to no\.md"):
        copies.rewritten("[a](no.md)", source, tmp_path)


def test_docstrings_become_restructuredtext():
    convert = load(DOCS / "_docstrings.py").as_rst
    lines = [
        *("The mean of x·1{|x| <= b_}: `a_b|c`.", "", "    f(x) = a*b", ""),
        *("A |a|^2 `f`:", "", "    e = m", "        c^2", ""),
        *("* a bullet", "  that goes on.", "", "Privacy:", "    Text.", ""),
        *(
            "        rho = |s|",
            "",
            "    More.",
            "",
            "Example:",
            "    >>> 2 * 3",
            "    6",
            "",
        ),
        *("    After_ it:", "", "    >>> f_", ""),
    ]
    formulas, names = {"|a|^2": "n^2", "e = m c^2": "mc^2"}, {"f": "dpjax.f"}
    assert convert(lines, formulas, names.get) == [
        *(r"The mean of x·1{\|x\| <= b\_}: ``a_b|c``.", ""),
        *("::", "", "    f(x) = a*b", ""),
        *(
            r"A \ :math:`n^2`\  :py:obj:`f <dpjax.f>`:",
            "",
            ".. math::",
            "",
            "    mc^2",
            "",
        ),
        *("* a bullet", "  that goes on.", ""),
        *("Privacy:", "    Text.", "", "    ::", "", "        rho = |s|", ""),
        *("    More.", "", "Example:", "    >>> 2 * 3", "    6", ""),
        *(r"    After\_ it:", "", "    >>> f_", ""),
    ]


def test_messages_are_those_of_the_code():
    messages = load(DOCS / "_messages.py")
    code = (
        "if x:\n    raise ValueError(f'a of {x} is too long to be {y}')\n"
        "_validate.require(x, 'key', x, 'a single one ' + 'of all')\n"
        "_validate.count(num_bins=x)\nraise ValueError(message)\n"
    )
    assert sorted(messages.messages(ast.parse(code))) == [
        "`a of … is too long to be …`",
        "`key must be a single one of all, got ….`",
        "`num_bins must be an integer of at least 1, got ….`",
    ]
    table, shown = messages.table(), (DOCS / "faq.md").read_text()
    for message in re.findall(r"\*\*`(.*)`\*\*", shown):
        first, *_ = (part for part in message.split("…") if len(part) > 9)
        assert first.split(", got ")[0] in table, message


def test_formulas_of_docstrings_are_in_one():
    texts = (path.read_text() for path in (ROOT / "dpjax").rglob("*.py"))
    words = " ".join(" ".join(texts).split())
    assert [x for x in load(DOCS / "_formulas.py").FORMULAS if x not in words] == []


def examples():
    """Yields each page's code, once for each of its tabs."""
    for path in GUIDES:
        text = path.read_text()
        tabs = dict(re.findall(r":::\{tab-item\} (.+)\n```python\n([^`]*)```", text))
        # A block of text behind code is what it prints.
        blocks = re.findall(r"```python\n([^`]*)```(?:\n\n```text\n([^`]*)```)?", text)
        for name in tabs or [""]:
            others = {code for tab, code in tabs.items() if tab != name}
            code = "\n".join(
                block + "".join(f"#> {line}\n" for line in said.splitlines())
                for block, said in blocks
                if block not in others
            )
            yield pytest.param(path, code, id=f"{path.name} {name}".strip())


def test_every_tab_is_an_example_of_its_own():
    names = [one.id for one in examples() if one.id.startswith("own_loop.md")]
    tabs = ["Flax NNX", "Flax Linen", "Equinox", "plain JAX"]
    assert names == [f"own_loop.md {tab}" for tab in tabs]


@pytest.mark.parametrize(("path", "code"), list(examples()))
@pytest.mark.slow
def test_examples_of_a_page_run(path, code, capsys):
    if "import equinox" in code:
        pytest.importorskip("equinox")
    # optax itself mixes dtypes: adam's count is an int32.
    with jax.numpy_dtype_promotion("standard"):
        exec(compile(code, str(path), "exec"), {})
    # Printed by one line, which says what, or in a loop, after which it is said.
    expected, is_loop = [], False
    for line in code.splitlines():
        if said := re.match(r"print\(.*\)  # (.*)", line):
            expected.append(said[1])
        elif line.startswith("#> "):
            expected.append(line[3:])
        elif is_loop and line.startswith("# "):
            expected.append(line[2:])
            continue
        is_loop = line.startswith("    print(")
    assert capsys.readouterr().out.splitlines() == expected


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", registry.BATCHINGS)
def test_loop_of_the_guide_draws_what_is_accounted_for(name, monkeypatch):
    """The printed loop, at a small size and with each batching, counted by record."""
    n, num_steps, one = 14, 9, registry.BATCHINGS[name].make()
    (code,) = (
        example.values[1] for example in examples() if example.id.endswith("plain JAX")
    )
    code = code.partition("predictions = ")[0]
    for line, ours in {
        "num_samples, num_steps, batch_size = 8_000, 150, 256": (
            f"num_samples, num_steps, batch_size = {n}, {num_steps}, 3"
        ),
        "batching = dpjax.batching.Poisson(batch_size)": "batching = one",
    }.items():
        assert code.count(f"{line}\n") == 1
        code = code.replace(line, ours)
    seen, draw = np.zeros((num_steps + 1, n), int), batching.Batching.draw

    def count(step, rows, mask):
        np.add.at(seen[step], rows, ~mask)

    def counting(self, state, data):
        batch, mask, following = draw(self, state, (data, jnp.arange(n)))
        jax.debug.callback(count, state.step, batch[1], mask)
        return batch[0], mask, following

    monkeypatch.setattr(batching.Batching, "draw", counting)
    names = {"one": one}
    with jax.numpy_dtype_promotion("standard"):
        exec(compile(code, "own_loop.md", "exec"), names)
        once_more = (names[x] for x in ("params", "state", "batches", "data"))
        names["train_step"](*once_more)
    jax.effects_barrier()
    pattern, most = one.participation(n, num_steps), seen.sum(axis=0).max()
    assert not seen[num_steps].any()  # a step too many
    assert seen.max() == 1
    assert 1 <= most <= pattern["max_participations"]
    if "sampling_prob" not in one.accounting(n, num_steps):
        assert most <= one.accounting(n, num_steps)["num_steps"]
    for column in seen.T:
        gaps = np.diff(np.flatnonzero(column))
        assert (gaps >= pattern["min_separation"]).all()
    if not one.pads and name != "WithoutReplacement":
        assert most == one.accounting(n, num_steps)["num_steps"]


@pytest.mark.parametrize("name", ["estimator", "mechanism", "solver"])
def test_examples_of_a_skeleton_run(name):
    path = SKELETONS / f"{name}.py"
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    result = doctest.testmod(load(path), optionflags=flags)
    assert result.attempted
    assert not result.failed


def test_skeleton_of_an_estimator_keeps_its_sensitivity():
    make = load(SKELETONS / "estimator.py").SaturatedMean
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


def test_skeleton_of_a_mechanism_has_its_law(key):
    logistic = load(SKELETONS / "mechanism.py").logistic
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


def test_skeleton_of_a_solver_counts(key):
    solve = load(SKELETONS / "solver.py").dp_histogram
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


def test_skeleton_of_a_data_set_loads(tmp_path, monkeypatch):
    monkeypatch.setenv("DPJAX_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    load_rents = load(SKELETONS / "dataset.py").load
    with pytest.raises(FileNotFoundError, match="Take the table"):
        load_rents()
    (tmp_path / "rents").mkdir()
    rows = ["area,year_built,district,rent", "100,2000,north,900", "odd,1950,?,1e3"]
    (tmp_path / "rents" / "rents.csv").write_text("\n".join([*rows, *rows[1:] * 2]))
    data = load_rents()
    assert data.features.shape == (5, 5)
    assert data.test_features.shape == (1, 5)
    np.testing.assert_allclose(data.features[:2], [[1, 1, 1, 0, 1], [0, 0, 0, 0, 1]])
    np.testing.assert_allclose(data.targets[:2], [9, 10])


def content(path):
    """A page's text, or the digest of what a picture was drawn from, in its file."""
    if path.suffix == ".png":
        with Image.open(path) as image:
            return image.text["Description"]
    text = path.read_text()
    return re.search("description>(.*?)<", text)[1] if path.suffix == ".svg" else text


@pytest.mark.slow
def test_pages_and_pictures_are_of_their_records(tmp_path, monkeypatch):
    monkeypatch.setattr(Figure, "draw", lambda *_: None)  # what it shows will do
    (tmp_path / "results").symlink_to(record.RESULTS)
    written = [*speed.write(tmp_path), *figures.write(tmp_path)]
    written += utility.write(tmp_path / "UTILITY.md")
    written += coverage.write(tmp_path / "COVERAGE.md")
    kept = {record.ROOT / path.relative_to(tmp_path): path for path in written}
    drawn = plots.write(tmp_path)
    kept |= {DOCS / "plots" / path.name: path for path in drawn}
    for old, new in kept.items():
        assert content(old) == content(new), "run `python -m benchmarks report`"
    pictures = [*(DOCS / "plots").iterdir(), *(record.ROOT / "plots").rglob("*.png")]
    assert set(pictures) == {path for path in kept if path.suffix != ".md"}
    assert sum(path.stat().st_size for path in pictures) < 2_150_000
    for light, dark in zip(drawn[::2], drawn[1::2], strict=True):
        assert content(light) == content(dark)
    shown = "".join(path.read_text() for path in PAGES)
    for path in drawn:
        assert f"plots/{path.name}\n:class: only-{path.stem[-5:].strip('-')}\n" in shown


def test_a_picture_of_other_numbers_has_another_digest():
    def digest(y, bars=(1, 2), name="a", title="one"):
        figure = Figure()
        axes = figure.subplots()
        axes.fill_between([1, 2], [0, 0], y)
        axes.plot([1, 2], [3, 4], label=name)
        axes.barh([0, 1], bars)
        axes.set_title(title, loc="left")
        return plots.drawn(figure)

    others = {"y": [1, 2.01]}, {"bars": (1, 3)}, {"name": "b"}, {"title": "two"}
    found = {digest(**({"y": [1, 2]} | other)) for other in ({}, *others, {})}
    assert len(found) == 5


def test_numbers_of_the_readme_are_those_of_the_records():
    numbers = utility.Numbers(record.read(utility.PATH))
    real = numbers.names(is_real=True)
    ours, wide = (
        numbers.geometric_mean(real, "dp_linear_model", 1.0, bar)
        for bar in ("hindsight", "hindsight_wide")
    )
    case = results(record.read(record.RESULTS / "cpu.json"))["gradient-mlp"]
    clipping, optax = (
        case.find(name)
        for name in ("Clipping", "optax differentially_private_aggregate")
    )
    best = min(
        one.seconds for one in case.methods if one.package.startswith("jax_privacy")
    )
    opacus = min(one.seconds for one in case.methods if one.package == "opacus")
    audits = findings.read(record.RESULTS / "audits.json")
    most = max(one.num_releases for one in audits.values())
    shares = {name: one.epsilon / one.claim for name, one in audits.items()}
    share = max(shares.values())
    model, chosen = (
        int(100 * shares[name])
        for name in ("dp_linear_model", "dp_linear_model_features")
    )
    losses = Numbers(record.read(predictions.PATH))
    curves, trees, line, rival = (
        f"{losses.of('credit_default', name, 1.0).mean:.3f}"
        for name in ("dp_additive_model", "trees", "dp_linear_model", "dp_ebm")
    )
    readme = " ".join((ROOT / "README.md").read_text().split())
    for text in (
        f"is {curves}. Boosted trees without any privacy have {trees}, the linear "
        f"model {line}, and the private boosting machine of InterpretML {rival}.",
        f"On five real data sets, the linear model's excess test risk is {ours[0]:.2f} "
        "times that of clipped",
        f"more settings, {wide[0]:.2f} times",
        f"{1e3 * clipping.seconds:.0f} ms and {clipping.peak_bytes / 2**20:.0f} MiB on "
        f"two CPU cores; optax's takes {1e3 * optax.seconds:.0f} ms and "
        f"{optax.peak_bytes / 2**20:.0f} MiB, jax_privacy's {1e3 * best:.0f} ms at its "
        f"best, Opacus' {1e3 * opacus:.0f} ms in PyTorch",
        f"{len(audits)} releases were attacked, with up to {most:,} draws each: no "
        f"claim was refuted, and the closest attack proved {100 * share:.0f} per cent",
        f"the steps of `dp_linear_model` proved {model} per cent, and {chosen} with "
        f"chosen features",
    ):
        assert text in readme
    assert share < 1
    assert (ours[1], wide[1]) == (5, 5)


@pytest.mark.slow
def test_winners_are_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(winners, "NUM_SAMPLES", 200)
    monkeypatch.setattr(winners, "NUM_FEATURES", (2,))
    monkeypatch.setattr(winners, "TAIL_INDICES", (3.0,))
    monkeypatch.setattr(winners, "REPETITIONS", 2)
    monkeypatch.setattr(
        winners, "_methods", lambda _, d: {"zero": [lambda *run: jnp.zeros(d)]}
    )
    path = tmp_path / "winners.json"
    winners.run(path)
    ((place, row),) = record.read(path).rows.items()
    assert place == (3.0, 2, "zero")
    np.testing.assert_allclose(row["excess"], [0.5, 0.5], rtol=1e-6)


@pytest.mark.slow
def test_intervals_are_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(intervals, "NUM_SAMPLES", 4_000)
    monkeypatch.setattr(intervals, "EPSILONS", (20.0,))
    monkeypatch.setattr(intervals, "REPETITIONS", 4)
    monkeypatch.setattr(intervals, "AT_ONCE", 2)
    path = tmp_path / "intervals.json"
    intervals.run(path)
    rows = record.read(path).rows
    plain, ours = (rows[20.0, one] for one in (intervals.PLAIN, intervals.OURS))
    assert len(rows) == 3
    assert sum(plain["held"]) > 0.8 * sum(plain["finite"]) == 0.8 * 44
    assert ours["finite"] == [4] * 11
    assert sum(ours["held"]) > 0.8 * 44


def test_the_citation_is_that_of_the_page():
    file, page = (
        (ROOT / name).read_text()
        for name in ("CITATION.cff", "docs/contribute/cite.md")
    )
    fields = dict(re.findall(r'^(title|version|date-released): "?(.*?)"?$', file, re.M))
    year = fields.pop("date-released")[:4]
    for name, value in (fields | {"year": year}).items():
        assert f"  {name} = {{{value}}},\n" in page
    assert len(fields) == 2


def test_lowest_versions_are_those_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = list(project["dependencies"])
    extras = project["optional-dependencies"]
    lines = (ROOT / ".ci" / "lowest.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if line and line[0] != "#")
    for name in ("experiments", "export", "loading", "parties", "sklearn", "test"):
        wanted += [one for one in extras[name] if not one.startswith("dpjax")]
    bounds = dict(re.split(r"(?:\[\w+\])?>=", one) for one in wanted)

    def release(text):
        numbers = tuple(map(int, text.split(".")))
        return numbers + (0,) * (3 - len(numbers))

    assert pinned.keys() == bounds.keys()
    assert {name: release(text) for name, text in pinned.items()} == {
        name: release(text) for name, text in bounds.items()
    }


def test_what_builds_a_release_is_named_exactly():
    uses = [
        re.split(r"\s*- uses: ", line, maxsplit=1)[1]
        for path in (ROOT / ".github" / "workflows").glob("*.yml")
        for line in path.read_text().splitlines()
        if "uses:" in line
    ]
    assert len(uses) > 10
    for one in uses:
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", one), one
    lines = (ROOT / ".ci" / "build.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if line[0] != "#")
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]
    assert pinned.keys() >= {one.split(">")[0] for one in needed["requires"]}


@pytest.mark.slow
def test_site_is_built_without_warnings_and_asks_no_other_host(tmp_path):
    pytest.importorskip("sphinx_book_theme")
    pytest.importorskip("myst_nb")
    pytest.importorskip("sphinx_design")
    pytest.importorskip("latex2mathml")
    pytest.importorskip("sphinx_copybutton")
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html"]
    result = subprocess.run(
        [*command, "-d", str(tmp_path / "trees"), str(DOCS), str(tmp_path / "html")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert result.returncode == 0, result.stderr
    asks = re.compile(
        r"<(?:script|img|iframe)[^>]*\ssrc=\"(?:https?:)?//|"
        r"<link[^>]*rel=\"(?:stylesheet|preload)\"[^>]*href=\"(?:https?:)?//"
    )
    pages = list((tmp_path / "html").rglob("*.html"))
    assert [page.name for page in pages if asks.search(page.read_text())] == []
    texts = {
        page.relative_to(tmp_path / "html").as_posix(): page.read_text()
        for page in pages
    }
    mechanism = "generated/api/dpjax.mechanisms/arsinh_normal.html"
    for name in (
        mechanism,
        "privacy/counting.html",
        "generated/notebooks/dp_mean.html",
    ):
        assert "<math" in texts[name]
    assert "[source]" in texts[mechanism]
    assert [name for name, text in texts.items() if ":math:" in text] == []
    index = (tmp_path / "html" / "searchindex.js").read_text()
    index = json.loads(index.removeprefix("Search.setIndex(").removesuffix(")"))
    for words, page in {
        "predict": "guides/table",
        "batchnorm": "guides/own_loop",
        "confidence interval": "guides/intervals",
        "valueerror": "faq",
    }.items():
        found = {index["docnames"][place[0]] for place in index["indexentries"][words]}
        assert page in found
    from sphinx.util.inventory import InventoryFile

    content = (tmp_path / "html" / "objects.inv").read_bytes()
    names = {
        name
        for kind, found in InventoryFile.loads(content, uri="").data.items()
        if kind.startswith("py:")
        for name in found
    }
    api = load(DOCS / "_api.py")
    for package in PACKAGES:
        for name in package.__all__:
            if not inspect.ismodule(getattr(package, name)):
                assert f"{api.home(package, name)}.{name}" in names
