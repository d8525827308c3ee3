"""The ledger: what runs on one table spend, and the run that is refused."""

import contextlib
import datetime
import re
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent

from dpjax.accounting import PrivacyFilter, PrivacyGuarantee, gaussian_epsilon
from dpjax.datasets import Categorical
from dpjax.tables.cli import _ledger
from dpjax.tables.cli._fit import train_private
from dpjax.tables.cli._ledger import Ledger, Source, charge, read_ledger
from dpjax.tables.cli._release import RunFolder
from dpjax.tables.cli._run import plan_training
from dpjax.tables.cli._schema import Schema
from dpjax.tables.cli._settings import Settings
from dpjax.tables.cli._sources import Table
from tests.unit.cli.command import done, invoke, read_report, refusals, refused

SOURCE = Source("d.csv", 400, ("x", "y"))


@pytest.fixture
def folder(folder):
    """A working directory with a file of 400 records, its schema, and a ledger."""
    done(invoke("ledger", "open", "t.toml", "--epsilon", 3, "--delta", "1e-4"))
    return folder


def train(*options, epsilon=1.0):
    what = ["data.csv", "--schema", "schema.toml", "--loss", "squared"]
    what += ["--epsilon", epsilon, "--delta", "1e-6"]
    return invoke("train", *what, "--ledger", "t.toml", "--output", "out", *options)


def entries():
    return tomllib.loads(Path("t.toml").read_text()).get("runs", [])


def gaussian(multiplier=5.0):
    return PrivacyGuarantee.of(1.0, 1e-6, dp_event=GaussianDpEvent(multiplier))


def charge_one(*parts, source=SOURCE, **options):
    named = {f"part {i}": part for i, part in enumerate(parts)}
    return charge(Path("t.toml"), named, source=source, method="m", **options).id


def test_the_file_is_read_as_it_was_written(folder):
    charge_one(gaussian(), gaussian(7.0))
    content = read_ledger(folder / "t.toml")
    (entry,) = content.entries
    assert content.limit == PrivacyFilter(3.0, 1e-4)
    assert entry.price == content.limit.price(gaussian())
    assert entry.parts[0] == "part 0, epsilon = 1, delta = 1e-06"
    again = Ledger(content.limit, None, SOURCE, (entry,))
    assert again.text() == (folder / "t.toml").read_text()
    odd = Ledger(content.limit, "\x9b'\"", Source("é\n\x7f\x85😀", 1, ("\\", "")))
    # An editor may have put a byte order mark before it.
    (folder / "odd.toml").write_text(odd.text(), "utf-8-sig")
    assert read_ledger(folder / "odd.toml") == odd
    # Of the time there is the day alone, in the file and of the file.
    assert entries()[0]["at"] == entry.at
    assert (folder / "t.toml").stat().st_mtime % 86_400 == 0
    shown = " ".join(invoke("ledger", "show", "t.toml").stdout.split())
    assert "All runs together: epsilon = 3, delta = 0.0001" in shown
    assert "What is left affords one run of Gaussian noise" in shown
    spent = gaussian_epsilon(5.0, 1e-4, sensitivity=1.0)
    assert f"1 run on {entry.at} spent as much as one run of Gaussian" in shown
    (_, later), pattern = shown.split("1 run on"), r"of about epsilon = (\S+) at delta"
    assert spent <= float(re.findall(pattern, later)[0]) < 1.01 * spent
    assert "The table: d.csv, 400 records, with the columns x, y." in shown


def test_a_ledger_is_of_one_table(folder):
    charge_one(gaussian())
    before = Path("t.toml").read_bytes()
    for other, message in (
        (Source("e.csv", 400, ("x", "y")), "the name d.csv, got"),
        (Source("d.csv", 399, ("x", "y")), "the number of records 400, got"),
        (Source("d.csv", 400, ("x", "z")), r"the columns \['x', 'y'\], got"),
    ):
        rule = f"--ledger must be the ledger of this table: .* {message}"
        with pytest.raises(ValueError, match=rule):
            charge_one(gaussian(), source=other)
    assert Path("t.toml").read_bytes() == before
    # Another order of the same columns is the same table; another file is not.
    charge_one(gaussian(), source=Source("d.csv", 400, ("y", "x")))
    # An older ledger has the blank name of a column.
    Path("t.toml").write_bytes(before.replace(b'"x", "y"', b'"", "y"'))
    charge_one(gaussian(), source=Source("d.csv", 400, ("column 1", "y")))
    Path("t.toml").write_bytes(before)
    refused(train(), "is of one with the name d.csv")


def test_a_ledger_is_opened_under_its_lock(folder, monkeypatch):
    locked, new = _ledger._files.locked, Path("new.toml")
    charge_one(gaussian())
    charged = Path("t.toml").read_bytes()

    @contextlib.contextmanager
    def waits(path):
        with locked(path):
            new.write_bytes(charged)  # by another process, which had the lock before
            yield

    monkeypatch.setattr("dpjax._files.locked", waits)
    opened = invoke("ledger", "open", new, "--epsilon", 9, "--delta", "1e-4")
    assert "LEDGER must be a new file" in opened.stderr
    assert new.read_bytes() == charged


def test_runs_add_up_until_one_is_refused(folder):
    limit = PrivacyFilter(3.0, 1e-4)
    number = int(limit.limit.divergence / limit.price(gaussian(2.0)).divergence)
    for _ in range(number):
        charge_one(gaussian(2.0))
    with pytest.raises(ValueError, match="This run would cost one run of Gaussian"):
        charge_one(gaussian(2.0))
    assert len(entries()) == number > 1
    # A smaller one has room.
    charge_one(gaussian(500.0))


def test_a_run_that_was_paid_is_not_paid_again(folder):
    first = charge_one(gaussian())
    assert charge_one(gaussian(), paid=first) == first
    assert charge_one(gaussian(), paid="unknown") != first
    with pytest.raises(ValueError, match=f"one with the price of the run {first}"):
        charge_one(gaussian(9.0), paid=first)
    assert len(entries()) == 2


def test_runs_at_once_lose_no_entry(folder):
    with ThreadPoolExecutor(4) as threads:
        [*threads.map(lambda _: charge_one(gaussian(20.0)), range(20))]
    assert len({run["id"] for run in entries()}) == 20


def table(n=50):
    """A table whose every cell raises where it is read."""
    columns = dict.fromkeys("aby", np.full(n, object(), object))
    kinds = {"a": None, "b": Categorical(("u", "v"))}
    return Table("t", columns, Schema(kinds, None), "y", np.zeros(n, bool))


def test_prices_are_asked_without_the_records():
    asked = {"epsilon": 2.0, "private_ranges": 0.5, "holdout": 0.4}
    settings = Settings(source="t", loss="squared", **asked)
    parts = plan_training(settings, table(50).held_out(0.4)).parts
    assert set(parts) == {"training", "evaluation"}
    training = parts["training"]
    assert training.epsilon == pytest.approx(2.0)
    assert "30 records" in training.description
    assert parts["evaluation"].epsilon == training.epsilon


def test_a_run_spends_before_it_starts_and_once(folder, monkeypatch):
    def killed(*arguments, run_folder=None, **options):
        assert len(entries()) == 1  # spent already
        train_private(*arguments, run_folder=run_folder, **options)
        raise KeyboardInterrupt

    options = ["--model", "linear", "--holdout", 0.3, "--checkpoint", "kept"]
    with monkeypatch.context() as patch:
        patch.setattr("dpjax.tables.cli._train.train_private", killed)
        train(*options)
    assert not (folder / "out").exists()
    (paid,) = entries()
    # The same run goes on, and has been paid; one of other options cannot go on.
    assert train(*options[2:]).exit_code == 2
    assert entries() == [paid]
    done(train(*options))
    assert entries() == [paid]
    assert not (folder / "kept").exists()
    assert [part.split(",")[0] for part in paid["parts"]] == ["training", "evaluation"]
    limit = PrivacyFilter(3.0, 1e-4)
    assert read_report(folder / "out")["privacy"]["epsilon"] == 1.0
    assert 0 < paid["divergence"] < limit.limit.divergence
    done(train())
    assert len(entries()) == 2


def test_a_run_beyond_the_limit_is_refused_before_anything(folder, monkeypatch):
    for name in ("encode_table", "warn_curator"):  # which would use the records
        monkeypatch.setattr(f"dpjax.tables.cli._train.{name}", None)
    left = "What is left affords one run of Gaussian noise, as of a linear model, of "
    cost = "This run would cost one run of Gaussian noise, as of a linear model, of"
    refused(train(epsilon=50.0), f"Error: {left}about epsilon = 2.5", cost)
    assert "divergence" not in train(epsilon=50.0).stderr
    assert entries() == []
    assert not (folder / "out").exists()
    text = (folder / "t.toml").read_text()
    left = read_ledger(folder / "t.toml").filter.left.divergence
    text += "[[runs]]\nid='a'\nat=2026-01-01T00:00:00Z\nmethod='m'\n"
    text += f"parts=[]\ndivergence={left!r}\ndelta=0.0\n"
    (folder / "t.toml").write_text(text)
    assert "Nothing is left." in train(epsilon=0.1).stderr
    assert "Nothing is left." in invoke("ledger", "show", "t.toml").stdout
    assert read_ledger(folder / "t.toml").entries[0].at == datetime.date(2026, 1, 1)
    # However much was spent, there is no room.
    more = text[text.index("[[runs]]") :].replace(repr(left), "1e308")
    (folder / "t.toml").write_text(text + more * 2)
    assert "Nothing is left." in train(epsilon=0.1).stderr
    shown = invoke("ledger", "show", "t.toml").stdout
    assert "3 runs on 2026-01-01 have spent" in shown


@pytest.mark.parametrize("options", [[], ["--model", "linear"]])
def test_a_folder_of_another_run_is_refused_before_it_is_paid(folder, options):
    run_folder = RunFolder(folder / "kept")
    (folder / "kept" / "states" / "0").mkdir(parents=True)
    if options:
        run_folder.keep_paid("abc", "of another command")
    message = "--checkpoint must be a folder of the same command"
    refused(train(*options, "--checkpoint", "kept"), message)
    assert entries() == []


LEDGER = "--ledger must be a file that dpjax ledger open has written"
HEAD = """format = 1
[limit]
relation = "REPLACE_ONE"
order = 60
delta = 1e-5
epsilon = 1 #
"""
FULL = f"""{HEAD}[[runs]]
id = 'a'
at = 2026-01-01
method = 'm'
parts = ['p']
divergence = 7
delta = 0
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "dpjax ledger open FILE --epsilon E --delta D writes one"),
        ("[", LEDGER),
        ("format = 2", "its format is 2, not 1: use the"),
        ("format = 1", LEDGER),
        (FULL.replace("7", "-3"), "must be non-negative"),
        *(
            (FULL.replace(old, new), LEDGER)
            for old, new in (
                *(("1 #", x) for x in ("'1'", "true", "9" * 400, "[" * 9_999, "nan")),
                *(("7", x) for x in ("'7'", "true", "9" * 400, "inf")),
                *(("2026-01-01", "'2026-01-01'"), ("['p']", "'p'"), ("'m'", "3")),
                ("REPLACE_ONE", "X"),
            )
        ),
        (f"{HEAD}[table]\nname = 'd'\nrecords = '4'\ncolumns = ['x']", LEDGER),
        (f"{HEAD}unit = 3", LEDGER),
        (f"runs = 3\n{HEAD}", LEDGER),
    ],
)
def test_files_that_are_no_ledgers_are_refused(folder, text, message):
    (folder / "t.toml").unlink()
    if text is not None:
        (folder / "t.toml").write_text(text)
    refused(train(), message)
    assert not (folder / "out").exists()


test_bad_ledgers_are_refused = refusals(
    """
ledger open t.toml --epsilon 1 --delta 0.1 => LEDGER must be a new
ledger open new.toml --epsilon 1 => Missing option '--delta'
ledger open n.toml --epsilon 0 --delta 0 => --epsilon must be
ledger open new.csv --epsilon 1 --delta 0 => that ends in .toml
ledger show none.toml => --ledger must be a file; dpjax ledger open FILE --eps
train adult --epsilon 1 --ledger t.toml => left out with adult, which has its own
train data.csv --epsilon 1 --seed 1 --ledger t.toml => --ledger must be left out with
"""
)


def test_a_ledger_of_persons_takes_runs_on_persons(folder):
    assert "--unit must be left out, as in" in train("--unit", "who").stderr
    Path("t.toml").unlink()
    what = ["--epsilon", 3, "--delta", "1e-4", "--unit", "who"]
    done(invoke("ledger", "open", "t.toml", *what))
    shown = " ".join(invoke("ledger", "show", "t.toml").stdout.split())
    assert "all records with one who" in shown
    assert read_ledger(Path("t.toml")).unit == "who"
    for unit in ([], ["--unit", "y"]):
        assert "--unit must be who, as in --ledger t.toml" in train(*unit).stderr
    charge_one(gaussian(), unit="who")
