"""`dpjax train`: what it refuses, with nothing written."""

import re

import numpy as np
import pytest

from dpjax.cli import _train
from tests.cli.command import refused
from tests.cli.rooms import NUMBER, SCHEMA, options, run, write_rooms

pytestmark = pytest.mark.usefixtures("compiled_quickly")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with a file of 40 records and its schemas."""
    monkeypatch.chdir(tmp_path)
    return write_rooms(tmp_path)


# Options that change, none of them left empty, and words of what is said then.
BAD_OPTIONS = r"""
epsilon=0 => --epsilon must be positive and finite, got 0
epsilon=-1 => --epsilon must be positive and finite, got -1
epsilon=nan => --epsilon must be positive and finite, got nan
epsilon=abc => '--epsilon': must be a number, got 'abc'
epsilon= => '--epsilon'
delta=1 => --delta must be strictly between 0 and 1, got 1
delta=-0.1 => --delta must be strictly between 0 and 1, got -0.1
delta=0 => --delta must be strictly between 0 and 1, got 0
steps=0 => --steps must be an integer of at least 1, got 0
steps=1.5 => '--steps': must be a whole number, got '1.5'
scale=0 => --scale must be between 1e-18 and 1e+30, got 0
moment_bound=-1 => --moment-bound must be between 1e-30 and 1e+30, got -1
moment_bound=1 scale=1 => --moment-bound must be left out with --scale
learning_rate=0 => --learning-rate must be positive and finite, got 0
l2=-1 => --l2 must be non-negative and finite, got -1
seed=-1 => --seed must be from 0 to 2^32 - 1, got -1
num_groups=3 => --num-groups must be left out with --estimator smoothed-tr
batch_size=3 => --batch-size must be left out with --batching full, got 3
batching=poisson => --batch-size must be given with --batching poisson
estimator=best => '--estimator': .*'best'
loss=best => '--loss': .*'best'
loss= => --loss must be given for a file: logistic, squared, absolute
method= loss= steps= => --loss must be given for a file
method= => --steps must be left out with --method linear-model (for gra
method= steps= loss=absolute =>
  --loss must be logistic or squared or huber or .* with --method linear-model
method= steps= calibration=paper =>
  --calibration must be tight with --method linear-model
max_features=2 => --max-features must be left out with --method gradient-d
model=additive => --model must be left out with .* (for linear-model), got 'additive'
method= steps= model=additive max_features=2 =>
  --max-features must be left out with --model additive
target= => --target must be given for a file: a column of ['rooms',
target=cost => --target must be a column of ['rooms', 'town', 'price', 
target=rooms => --target must be a column that is no feature
schema=none.toml => --schema must be a file that exists, got 'none.toml'
loss=logistic => --schema must be positive, the text or number
output=data.csv => --output must be a folder that can be written to
output=data.csv/x => --output must be a folder that can be written to
estimator=median-of-means num_groups=0 => --num-groups must be an integer of at least 1
estimator=median-of-means num_groups=41 => --num-groups must be at most the 40 records
estimator=median-of-means batching=poisson batch_size=9 => --batching must be full or
batching=poisson batch_size=41 => --batch-size must be at most the num
batching=disjoint steps=41 => --steps must be at most the 40 records
batching=poisson batch_size=9 calibration=paper =>
  --calibration must be tight with --batching poisson, got 'paper'
method=best => '--method': .*'best'
radius=1 => --radius must be left out with --method gradient-descent (for fr
sparsity=2 => --sparsity must be left out with --method gradient-descent
candidates=9 => --candidates must be left out with --method gradient-descent
method=frank-wolfe radius=0 => --radius must be between 1e-12 and 1e+12, got 0
method=frank-wolfe sparsity=2 => --sparsity must be left out with --method frank-w
method=frank-wolfe learning_rate=2 => --learning-rate must be between 0 and 1
method=frank-wolfe steps=41 => --steps must be at most the
method=frank-wolfe batching=full =>
  --batching must be left out with --method frank-wolfe (for gradient-
method=frank-wolfe estimator=median-of-means => --estimator must be another
method=frank-wolfe estimator=truncation =>
  --scale must be given with --method frank-wolfe and --estimator truncation
method=frank-wolfe calibration=paper estimator=clipping =>
  --estimator must be smoothed-truncation with --calibration paper
method=lasso loss=huber => --loss must be squared with --method lasso, got 'hub
method=lasso estimator=clipping => --estimator must be left out with --method la
method=lasso batching=disjoint => --batching must be left out with --method lass
method=lasso l2=0.1 => --l2 must be left out with --method lasso (for gr
method=lasso scale=1e-09 => --scale must be between 1e-08 and 1e+12, got 1e-09
method=lasso calibration=paper delta=0 => --delta must be strictly between
method=sparse => --sparsity must be given with --method sparse and --loss s
method=sparse sparsity=0 => --sparsity must be an integer of at least 1, got 0
method=sparse sparsity=5 => --sparsity must be at most the number of features, 4
method=sparse sparsity=2 delta=0 => --delta must be strictly between 0 and 1, got 0
method=sparse sparsity=2 loss=huber radius=1 =>
  --radius must be left out with --method sparse and --loss
method=l1 loss=squared steps= => --loss must be absolute with --method l1, got 'squared'
method=l1 loss= steps=3 => --steps must be left out with --method l1 (for g
method=l1 loss= steps= delta=0.1 =>
  --delta must be 0 or left out with --method l1, got 0.1
method=l1 loss= steps= candidates=1 =>
  --candidates must be from 2 to 67,108,864 with 4 features
private_ranges=0 => --private-ranges must be strictly between 0 and 1, got 0
private_ranges=1 => --private-ranges must be strictly between 0 and 1, got 1
private_ranges=x => '--private-ranges': must be a number, got 'x'
private_ranges=0.1 => --private-ranges must be left out where the schema
"""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "lasso"}, "--intervals must be left out with --method lasso"),
        ({"model": "additive"}, "--model must be left out with --intervals"),
        ({"max_features": 2}, "--max-features must be left out with --intervals"),
        ({"loss": "tweedie"}, "--loss must be left out with --intervals"),
        ({"unit": "town"}, "--intervals must be left out with --unit"),
    ],
)
def test_what_has_no_intervals_is_refused(folder, changes, message):
    given = options(**{"method": None, "steps": None} | changes)
    refused(run("data.csv", *given, "--intervals"), message)


@pytest.mark.parametrize(
    ("changes", "message"), re.findall(r"^(.+) =>\s+(.+)$", BAD_OPTIONS, re.MULTILINE)
)
def test_static_mistakes(folder, changes, message):
    before = sorted(folder.rglob("*"))
    pairs = (pair.split("=") for pair in changes.split())
    given = options(**{name: value or None for name, value in pairs})
    refused(run("data.csv", *given), *message.split(".*"))
    assert sorted(folder.rglob("*")) == before


def test_mistakes_in_the_data_argument(folder, monkeypatch):
    monkeypatch.delenv("DPJAX_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    (folder / "empty.csv").write_text("rooms,town,price\n")
    (folder / "one.csv").write_text("rooms,town,price\n1,2,3\n")
    (folder / "twice.csv").write_text("rooms,town,price,rooms\n1,2,3,4\n")
    np.savez("ragged.npz", rooms=np.ones(3), town=np.ones(2), price=np.ones(3))
    before = sorted(folder.rglob("*"))
    for name, *parts in [
        ("none.csv", "DATA must be a file, or one of adult, rand_hie", "'none.csv'"),
        ("empty.csv", "DATA must be a file with at least one record", "'empty.csv'"),
        ("one.csv", "--delta must be given with a single record, of which n^-1.1 is 1"),
        ("twice.csv", "DATA must be a file whose columns have distinct names"),
        ("ragged.npz", "DATA must be made of columns of one shape", "(2,)"),
        (".", "or a folder of such alone, without class.toml, number.toml"),
    ]:
        refused(run(name, *options()), *parts)
    refused(run("adult", *options()), "--schema must be left out with adult")
    refused(run("adult", *options(schema=None)), "--target must be left out with")
    named = ["--epsilon", 1, "--output", "out"]
    ranges = [*named, "--private-ranges", 0.1]
    refused(run("adult", *ranges), "--private-ranges must be left out with adult")
    for option in ("--quoted", "--row-names"):
        refused(run("adult", *named, option), f"{option} must be left out with adult")
    refused(run("credit-default", *named), "$DPJAX_DATA/credit/UCI_Credit_Card.csv.gz")
    refused(run("rand_hie", *named, "--loss", "logistic"), "--loss must be squared")
    refused(
        run("one.csv", *options(), "--show-unprotected"),
        "--show-unprotected must be left out below 5 records, got 1",
    )
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("section", "num_records", "rule"),
    [
        ("rooms = {}", 19, "below 20 records, of 19"),
        ('rooms = {categories = ["1"]}', 40, "where no column is one of numbers"),
    ],
)
def test_what_an_additive_model_needs(folder, monkeypatch, section, num_records, rule):
    lines = (folder / "data.csv").read_text().splitlines()[: 1 + num_records]
    (folder / "data.csv").write_text("\n".join(lines))
    (folder / "number.toml").write_text(f"columns.{section}\ntarget = {{}}")
    before = sorted(folder.rglob("*"))
    monkeypatch.setattr(_train, "with_ranges", None)
    changes = {"model": "additive", "method": None, "steps": None, "epsilon": 90}
    result = run("data.csv", *options(private_ranges=0.1, **changes))
    refused(result, f"--model must be linear or left out {rule}, got 'additive'")
    assert sorted(folder.rglob("*")) == before


def test_a_schema_with_an_unknown_column(folder):
    text = SCHEMA.replace("columns.rooms", "columns.floors") + NUMBER
    (folder / "number.toml").write_text(text)
    result = run("data.csv", *options())
    refused(result, "--schema must be made of columns of data.csv", "got ['floors']")
