"""`dpjax report`: what it says of each kind of run, and that it needs nothing else."""

import dataclasses
import html
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import UnsupportedDpEvent
from scipy.stats import norm

from dpjax import datasets, load_model
from dpjax.accounting import PrivacyGuarantee, Sample, Sampling, noise_multiplier
from dpjax.tables.cli._report import _with_event
from tests.unit.cli.command import done, invoke, model_file, refused, tree

BAD = '<script>x</script>|`*_"[a](http://b.c)\x1b[2J\n# h\u202e\ud800 {claim} www.d.e'
SHOWN = BAD.replace("\x1b", "\\x1b").replace("\n", "\\n")
SHOWN = SHOWN.replace("\u202e", "\\u202e").replace("\ud800", "\\ud800")
COLUMNS = 'columns.x = {%s}\ncolumns.job = {categories = ["cook", "smith"]}\n'
KNOWN = "center = 0, scale = 1, limit = 3"
TARGET = "column = 'y', center = 0, scale = 2"
SCHEMAS = {
    "schema": COLUMNS % KNOWN + f"target = {{{TARGET}}}",
    "labels": COLUMNS % KNOWN + "target = {column = 'sold', positive = 'yes'}",
    "open": COLUMNS % "" + f"target = {{{TARGET}}}",
}
GIVEN = "data.csv --epsilon 8 --delta .001 --schema"
SQUARED = f"{GIVEN} schema.toml --loss squared"
RUNS = {  # a command, and what is said of its run
    "linear": (
        f"train {SQUARED} --holdout .3 --ledger t.toml",
        "Method: DP linear model",
        "Guarantee: epsilon = 8, delta = 0.001, for each record",
        "Replacing any one of the 400 records changes the probability of any event to",
        "The ledger allows all runs on the table together epsilon = 90, delta = 0.01.",
        "dpjax train data.csv --epsilon 8 --delta 0.001 --loss squared, with a schema",
        "The noise came from the operating system.",
    ),
    "labels": (
        f"train {GIVEN} labels.toml --loss logistic --holdout .4",
        *("share with the label", "predicted probability", "accuracy: the share of r"),
    ),
    "ranges": (
        f"train {GIVEN} open.toml --loss squared --private-ranges .5",
        *("released privately", "of it, centers and scales", "No ledger was given"),
        "No scores were released; --holdout 0.2 releases them with a separate",
    ),
    "persons": (
        f"train {SQUARED} --unit who --records-per-unit 2",
        "Table: data.csv, 50 values of who",
        "for each group of records with one who",
        "All records with one who are protected together; 2 of them count at most.",
        "All of it follows from the run's Gaussian noise.",
    ),
    "sampled": (
        f"train {SQUARED} --max-records 200 --holdout .3",
        *("Table: data.csv, 400 records", "Sample: 200 of them, drawn at random."),
        *("on the sample, by itself | 8.69", "the run's Gaussian noise"),
    ),
    "described": (
        f"describe {GIVEN} schema.toml --by job",
        "Report on a private description of data.csv",
        "All of it follows from the run's Gaussian noise.",
        *("share of the budget", "What the table holds", "dpjax describe data.csv"),
    ),
    "intervals": (
        f"train {SQUARED} --intervals",
        "95% interval",
        "An interval is for the coefficient of the best predictor of this kind",
    ),
    "curves": (
        f"train {SQUARED} --epsilon 99 --model additive",
        *("DP additive model", "knots, -3 to 3", "A column has a value of 0 at"),
    ),
}
OURS = "html head meta title style body h1 h2 p ul li table tr th td picture source img"
BOTH = "RUN must be a folder that has either report.json of dpjax train, or des"
OTHER = "RUN must be what dpjax train or describe has written, got 'linear/report"


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A folder with a table of 400 records of 50 persons, and a ledger."""
    folder = tmp_path_factory.mktemp("table")
    rng = np.random.default_rng(0)
    x, job = rng.uniform(-2, 2, 400), rng.choice(["cook", "smith", ""], 400)
    sold = np.where(x + rng.normal(size=400) > 0, "yes", "no")
    rows = [f"{i % 50},{x[i]},{job[i]},{x[i] + (i % 3)},{sold[i]}" for i in range(400)]
    (folder / "data.csv").write_text("\n".join(["who,x,job,y,sold", *rows]))
    for name, text in SCHEMAS.items():
        (folder / f"{name}.toml").write_text(text)
    done(invoke("ledger", "open", folder / "t.toml", "--epsilon", 90, "--delta", ".01"))
    return folder


@pytest.fixture
def out(table, tmp_path, monkeypatch):
    """Makes runs, each once, and copies them to where nothing else lies."""

    def out(name="linear"):
        if not (table / name).exists():
            monkeypatch.chdir(table)
            done(invoke(*RUNS[name][0].split(), "--output", name))
        monkeypatch.chdir(tmp_path)
        shutil.copy(table / "t.toml", "t.toml")
        return shutil.copytree(table / name, Path(name))

    return out


def texts_of(page):
    """Returns the texts of a page, which has no tags but ours, and needs no file."""
    assert {*re.findall(r"</?([^\s>]+)", page)} <= {*OURS.split(), "!doctype"}
    links = re.findall(r'(?:src|srcset|href)="([^"]*)"', page)
    assert all(link.startswith("data:image/") for link in links)
    texts = map(html.unescape, re.split("<[^>]*>", page.split("<body>")[-1]))
    return " | ".join(text.strip() for text in texts if text.strip())


def report(*arguments):
    """Returns a report, with its pictures within it."""
    result = done(invoke("report", *arguments))
    page = Path(result.stdout.removeprefix("wrote ").strip()).read_bytes().decode()
    assert "data:image/" in page
    return page


@pytest.mark.parametrize(
    ("size", "share", "num_steps"), [(1, 0.1, 1), (3, 1.0, 50), (3, 0.1, 1)]
)
def test_attacks_on_units_and_samples_are_of_gaussian_noise(size, share, num_steps):
    asked, sample_size = (1.0, 1e-5), int(1000 * share)
    own = Sample(1000, sample_size).budget(*asked)
    multiplier = size * noise_multiplier(*own, Sampling(num_steps=num_steps))
    of_all, of_sample = ({"epsilon": x, "delta": y} for x, y in (asked, own))
    stats = {"noise_multiplier": multiplier, "num_steps": num_steps}
    content = {"privacy": of_all, "stats": stats}
    if size > 1:
        content["unit"] = {"records_per_unit": size}
    if share < 1:
        numbers = {"num_records": 1000, "max_records": sample_size}
        content["sample"] = {"budget_of_sample": of_sample, **numbers}
    claimed = PrivacyGuarantee.of(*asked, dp_event=UnsupportedDpEvent())
    rates = np.array([1e-3, 0.01, 0.1])
    reported = _with_event(content, claimed).tradeoff(rates)
    # With probability `share` the record is in the sample: Dong, Roth, Su, section 4.
    mu = size * num_steps**0.5 / multiplier
    exact = share * norm.cdf(norm.ppf(rates) + mu) + (1 - share) * rates
    np.testing.assert_allclose(reported, exact, rtol=1e-4)
    assert np.all(reported >= exact)
    assert np.all(reported < 0.99 * claimed.tradeoff(rates))


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", RUNS)
def test_each_run_is_reported(out, name):
    given = [out(name), *["--ledger", "t.toml"] * (name == "linear")]
    page = report(*given)
    assert report(*given) == page  # a function of the run
    text = texts_of(page)
    for words in RUNS[name][1:]:
        assert words in text
    assert not re.search(r"[{}]|None|\bnan\b|not in the ledger", text)


def test_a_report_warns_of_public_data_a_seed_and_a_foreign_ledger(out):
    path = out() / "report.json"
    content = json.loads(path.read_text())
    content |= {"is_public": True, "comparison": [{"a_risk": 1.5}]}
    content["privacy"]["noise_key"] = "seeded, hence for public data only"
    path.write_text(json.dumps(content))
    ledger = Path("t.toml").read_text()
    own = content["ledger_entry"]
    assert own in ledger
    Path("t.toml").write_text(ledger.replace(own, "0" * 16))  # another, as dear
    text = texts_of(report(path, "--ledger", "t.toml"))
    assert "there was nothing to protect" in text
    assert "The noise was made from a seed." in text
    assert "This run is not in the ledger." in text
    assert "a risk | 1.5" in text


@pytest.mark.quick(1)
@pytest.mark.parametrize("kind", ["described", "linear"])
def test_text_of_strangers_is_escaped(out, kind):
    path = out(kind)
    record = path / ("report.json" if kind == "linear" else "description.json")
    content = json.loads(record.read_text())
    content["data"] = content["privacy"]["description"] = BAD
    if kind == "linear":
        model = load_model(path)
        columns = {BAD: datasets.Numeric(), "job": datasets.Categorical((BAD, "smith"))}
        model = dataclasses.replace(
            model,
            **{"data": BAD, "method": BAD, "target_name": BAD, "versions": {BAD: BAD}},
            **{"columns": columns, "target_unit": BAD},
            privacy=dataclasses.replace(model.privacy, description=BAD),
        )
        (path / "model.npz").write_bytes(model_file(model))
        content |= {"method": BAD, "loss": BAD, "feature_names": [*model.feature_names]}
        content["stats"] = {BAD: BAD, "list": [BAD]}
        measures = content["evaluation"]["measures"]
        measures[f"claim {BAD}"] = next(iter(measures.values()))
    for row in content.get("rows", []):
        row["of"] = row["of"] and BAD
    record.write_text(json.dumps(content))
    text = texts_of(report(path))
    # Neither control characters nor halves of characters.
    assert SHOWN in text
    assert not set("\x1b\u202e\ud800") & set(text)
    assert "Guarantee: epsilon = " in text


def changed(**changes):
    path = Path("linear", "report.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("arguments", "arrange", "message"),
    [
        (["none"], None, BOTH),
        (["linear"], lambda: os.remove("linear/model.npz"), "linear/model.npz"),
        (["linear"], lambda: Path("linear/description.json").write_text("{}"), BOTH),
        (["linear"], lambda: changed(data="b.csv"), f"{OTHER}.json': ValueError, r"),
        (["linear"], lambda: changed(stats=3), OTHER),
        (["linear"], lambda: changed(evaluation={"measures": []}), OTHER),
        (["linear", "--ledger", "linear/report.json"], None, "--ledger must be a f"),
        (["t.html", "--output", "t.html"], None, "--output must be another file th"),
    ],
)
def test_files_of_no_run_are_refused(out, arguments, arrange, message):
    out()
    Path("t.html").write_text("{}")
    if arrange:
        arrange()
    before = tree(Path())
    refused(invoke("report", *arguments), message)
    assert tree(Path()) == before
