"""The page of guarantees is up to date, its pitfalls are shown; audits by command."""

import contextlib
import dataclasses
import doctest
import importlib
import inspect
import pkgutil
import re

import jax
import pytest

import dpjax
from benchmarks import guarantees
from benchmarks.__main__ import main
from benchmarks.audits import catalogue, command
from benchmarks.audits.case import Case
from benchmarks.audits.catalogue import cases
from dpjax import batching, mechanisms, models, parties, solvers, transforms, tuning
from tests.unit.cli import conftest

folder = conftest.here
LAYERS = [mechanisms, transforms, solvers, models, parties, tuning]
PITFALLS = re.split(r"^### ", guarantees.PITFALLS.read_text(), flags=re.MULTILINE)
SETUP, PITFALLS = PITFALLS[0], {x.split("\n")[0]: x for x in PITFALLS[1:]}
AUDIT = "run `python -m benchmarks guarantees --audit`"
# A function with one of these draws at random, or talks to other parties.
SOURCES = {"key", "random_bytes", "transport", "secure_sum"}
# Takes such an argument, and releases nothing of records.
NO_RELEASE = {
    "audit.epsilon_lower_bound": "an attack",
    "audit.one_run": "an attack",
    **{f"batching.{name}.init": "the state of batches" for name in batching.__all__},
    "loading.sample": "draws what a run reads, and is secret",
    "solvers.PrivateTraining.init": "the state before the first release",
    "solvers.robust_gradient_descent": "says that it has no privacy",
}
PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def record():
    return catalogue.read(guarantees.RECORD)


def test_the_page_is_what_the_command_writes(record):
    page = guarantees.PAGE.read_text()
    assert page == guarantees.page(record), "run `python -m benchmarks guarantees`"


def test_the_record_is_of_every_case(record):
    assert list(record) == list(cases()), AUDIT
    for one in record.values():
        assert 0 <= one.epsilon <= one.claim
        assert one.confidence == 1 - 1e-6


def public_functions():
    public = (x.name for x in pkgutil.iter_modules(dpjax.__path__) if x.name[0] != "_")
    for module in public:
        package = importlib.import_module(f"dpjax.{module}")
        for name in getattr(package, "__all__", ()):
            value = getattr(package, name)
            yield f"{module}.{name}", value
            for inner in dir(value) if inspect.isclass(value) else ():
                if inner[0] != "_":
                    yield f"{module}.{name}.{inner}", getattr(value, inner)


def test_every_public_release_is_stated_on_the_page():
    random, page = set(), guarantees.PAGE.read_text()
    for name, value in public_functions():
        with contextlib.suppress(TypeError, ValueError):  # the class of an exception
            is_random = SOURCES & set(inspect.signature(value).parameters)
            if is_random and not name.startswith("datasets."):  # made-up data
                random.add(name)
    assert set(NO_RELEASE) <= random
    states = {name for name in random if name.endswith("State")}  # a release keeps them
    stated = {
        f"{package.__name__.removeprefix('dpjax.')}.{one.name}"
        for package in LAYERS
        for one in guarantees.statements(package)
    }
    assert random - set(NO_RELEASE) - states <= stated
    for name in stated:
        assert f"`{name.split('.')[1]}`" in page
    assert dpjax.dp_sgd is transforms.dp_sgd  # what the top level repeats


def test_every_claim_has_neighbors_and_a_source():
    for package in LAYERS:
        for one in guarantees.statements(package):
            if not one.is_free:
                assert one.neighbors or package is parties, one.name
                assert one.source, f"{one.name} needs a Reference"
                assert len(one.summary) < 250, one.summary


def test_every_case_attacks_one_release(record):
    claims = [one for package in LAYERS for one in guarantees.statements(package)]
    claims = [one.name for one in claims if not one.is_free]
    cases_of = guarantees.audited(claims, list(record))
    # The page says of these that they are not audited, and why.
    elsewhere = {"dp_select", "clipped_loss"}  # tests/nightly/tuning
    missing = {name for name, names in cases_of.items() if not names}
    assert missing == {"SecureSum", *elsewhere}
    attacking = [case for names in cases_of.values() for case in names]
    assert sorted(attacking) == sorted(record)


@pytest.mark.parametrize("name", PITFALLS)
def test_a_pitfall_is_shown_as_it_is_seen(name):
    code = "".join(re.findall(r"```pycon\n(.*?)```", SETUP + PITFALLS[name], re.S))
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    test = doctest.DocTestParser().get_doctest(code, {}, name, None, None)
    report = []
    # As a user has them, not as strict as this suite.
    with (
        jax.debug_key_reuse(False),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        runner = doctest.DocTestRunner(verbose=False, optionflags=flags)
        runner.run(test, out=report.append)
    assert not report, "".join(report)
    assert sum(bool(example.want) for example in test.examples) >= 1
    assert "*Seen" in PITFALLS[name] or "*Not seen" in PITFALLS[name]


def test_the_record_is_taken_up_where_it_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(guarantees, "RECORD", tmp_path / "record.json")
    audited, audit, page = [], Case.audit, tmp_path / "page.md"
    laplace = dataclasses.replace(cases()["laplace"], num_releases=2000)

    def count(self, **options):
        audited.append(self.name)
        if len(audited) == 2:
            raise OSError("cut off")
        return audit(self, **options)

    def run(epsilon, *options):
        privacy = dataclasses.replace(laplace.privacy, epsilon=epsilon)
        other = dataclasses.replace(laplace, name="other", privacy=privacy)
        pair = {"laplace": laplace, "other": other}
        monkeypatch.setattr(guarantees, "cases", lambda: pair)
        main(["guarantees", *options, "--output", str(page)])
        assert f"`other` | replace-one | {epsilon:g} |" in page.read_text()

    monkeypatch.setattr(Case, "audit", count)
    with pytest.raises(SystemExit, match="error: cut off"):
        run(2.0, "--audit")
    assert not page.exists()
    # Taken up; nothing to do; a new claim; the page alone.
    for epsilon, options in (2.0, ["--audit"]), (2.0, ["--audit"]), (3.0, ["--audit"]):
        run(epsilon, *options)
    run(3.0)
    assert audited == ["laplace", "other", "other", "other"]
    (tmp_path / "record.json").write_text('{"laplace": {"epsilon": 1}}')
    with pytest.raises(SystemExit, match="not a record"):
        run(2.0)


@pytest.mark.parametrize("name", cases())
def test_the_record_is_found_again(name, record):
    case = cases()[name]
    assert record[name].is_of(case), AUDIT
    audit = catalogue.audit(case)
    # Another machine's floats may put a few releases on the other side of a threshold.
    assert audit.epsilon == pytest.approx(record[name].epsilon, abs=0.02 * audit.claim)
    assert audit.epsilon <= audit.claim


def test_the_page_rounds_claims_up_and_bounds_down(record):
    numbers = {"claim": 1.00001, "delta": 1.2345612e-5, "epsilon": 0.99998}
    odd = dataclasses.replace(record["laplace"], **numbers)
    page = guarantees.page(record | {"laplace": odd})
    assert "ε ≥ 0.999 of 1.01 |" in page
    assert "| 1.001 | 1.23457e-05 | 0.9999 | 99% | 100,000 |" in page


@pytest.fixture
def run(capsys):
    def of(*arguments):
        code = None
        try:
            main(["audit", *map(str, arguments)])
        except SystemExit as end:
            code = end.code
        return " ".join(capsys.readouterr().out.split()), code

    return of


def test_a_claim_that_stands(folder, run):
    assert run("list")[0].split() == list(cases())
    assert not list(folder.iterdir())
    text, code = run("laplace", "--releases", 20_000)
    assert code is None
    assert "laplace: claims epsilon = 1 at delta = 0, replace_one" in text
    assert re.search(r"An attack proves epsilon >= 0\.[6-9]", text)
    assert "with confidence 1 - 1e-06, from 20,000 releases" in text
    assert "REFUTED" not in text
    path = folder / "dpjax-output" / "laplace-audit.png"
    assert path.read_bytes().startswith(PNG)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_claim_that_is_refuted(folder, run, monkeypatch):
    case = cases()["laplace"]
    privacy = dataclasses.replace(case.privacy, epsilon=1.00001, delta=1.2345612e-5)

    def release(key, value):
        return case.release(key, jax.tree.map(lambda x: 2 * x, value))

    faulty = dataclasses.replace(case, release=release, privacy=privacy)
    monkeypatch.setattr(command, "cases", lambda: {"laplace": faulty})
    (folder / "plot.png").write_text("of an earlier run")
    text, code = run("laplace", "--releases", 20_000, "--output", "plot.png")
    assert code == 1
    assert "REFUTED" in text
    # A claim is rounded up, and a bound down.
    assert "claims epsilon = 1.001 at delta = 1.23457e-05," in text
    assert (folder / "plot.png").read_bytes().startswith(PNG)
    assert [p.name for p in folder.iterdir()] == ["plot.png"]
