"""Every command writes and prints what its mechanisms release, nothing else.

Outside of the guarantee, and said so where a user reads of them: messages on stderr,
which are for the curator; `check`, `schema --from-data` and `--strict`; and
predictions, which are for whoever may see the records.
"""

import contextlib
import datetime
import functools
import os
import re
import secrets
import shutil

import pytest
from typer.testing import CliRunner

from dpjax.solvers import Execution
from dpjax.tables.cli import _describe, _fit, _ledger, _run, _train
from dpjax.tables.cli._app import app
from tests.privacy.replay import _replay
from tests.unit.cli.command import sheet

NUM = 60
COLUMNS = "who,x,job,y"
SCHEMA = """\
columns.x = {center = 0, scale = 1}
columns.job = {categories = ["cook", "smith"]}
"""
SQUARED = 'target = {column = "y", center = 0, scale = 2}\n'
JOBS = SCHEMA.split("\n", 1)[1]
SCHEMAS = {
    "squared": SCHEMA + SQUARED,
    "logistic": SCHEMA + 'target = {column = "y", positive = "1.5"}\n',
    "classes": SCHEMA + 'target = {column = "y", categories = [0.5, 1.5, 2.5]}\n',
    "poisson": JOBS + 'target = {column = "y", scale = 2}\n'
    'exposure = {column = "x", max = 1}\n',
    "weighted": SCHEMA + SQUARED + 'weight = {column = "who", max = 5}\n',
    "limits": JOBS + "columns.x={center=0,scale=1,limit=2}\nweight={column='y',max=2}",
    "open": JOBS + 'columns.x = {}\ntarget = {column = "y"}\n',
    "dates": JOBS + 'columns.x = {first = "2020-01-01", last = "2020-06-30", format = '
    '"%d.%m.%Y"}\ncolumns.who = {part = "weekday"}\n' + SQUARED,
}
# Lines that no reader of tables likes.
HOSTILE = [
    *("0,nan,cook,inf", "0,1e308,a new job,-1e308", "0,-inf,,nan", "0,,,", "0", ""),
    *('0,"1,2,3', "0,True,1,False", "0,1e400,\x00,0x10", "0,\udcff\udcfe,cook,\udcff"),
    *(f"0,{'9' * 5000},smith,{'9' * 400}", "0,1,cook,2,3,4,5", '0,"1\r2",cook,3'),
    *("\ufeff0,\u0661,\u017fmith,½", '0,1_8,"a ""b""\r,c",True', '0,"1"2,None,"3'),
    *('0,"",NaT,"-1.509.000,5 EUR"', "0,1.5,\udce9,NA"),
    *("2020-02-30,29.02.2021,cook,1", "9999-12-31T25,31.12.99999,cook,1", "0,1.1.0,,1"),
]
WATCHES = []
# The callback of all commands, so that they share programs: the last one's own.
watch = lambda step, params: WATCHES[-1](step, params)  # noqa: E731


def plain():
    x = [((7 * i) % NUM) / 10 - 3 for i in range(NUM)]
    jobs = ["cook", "smith"]
    return [f"{i % 20},{x[i]},{jobs[i % 2]},{i % 3 + 0.5}" for i in range(NUM)]


def watched(*, callback, **options):
    WATCHES[:] = [callback]
    return Execution(callback=watch, **options)


class Commands:
    """Runs a command in a folder that is made anew, with the same key and clock."""

    def __init__(self, hooks, folder, patch):
        self.hooks, self.folder = hooks, folder
        self.runs, self.prices, self.stated, self.ticks = [], [], [], []
        self.drawn, self.is_reported = 0, False
        patch.chdir(folder)
        patch.setattr(os, "urandom", self.urandom)
        patch.setattr(_train, "progress_bars", self.bars)
        patch.setattr(_fit, "Execution", watched)
        patch.setattr(_fit, "_LONG", 0)  # steps move a bar, as of a long table
        patch.setattr(secrets, "randbits", lambda size: 7)
        patch.setattr(secrets, "token_hex", lambda size: "0" * 2 * size)
        self.note(patch, _train, "plan_training", self.runs)
        self.note(patch, _describe, "plan_description", self.runs)
        self.note(patch, _run, "training_privacy", self.prices)
        self.note(patch, _run, "one_gaussian", self.prices)
        self.note(patch, _train, "train_private", self.stated)
        self.note(patch, _describe, "release", self.stated)

        class Clock(datetime.datetime):
            @classmethod
            def now(cls, tz=None):
                return cls(2026, 1, 2, tzinfo=tz)

        patch.setattr(_ledger, "datetime", Clock)

    def urandom(self, size):
        self.drawn += 1
        return (b"%08d" % self.drawn * size)[:size]

    @contextlib.contextmanager
    def bars(self, console):
        yield lambda *tick: self.ticks.append(tick)

    def note(self, patch, module, name, results):
        call = getattr(module, name)

        def noted(*args, **options):
            results.append(call(*args, **options))
            return results[-1]

        patch.setattr(module, name, noted)

    def run(self, options, lines, encode):
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        (self.folder / "run").mkdir()
        self.drawn, self.ticks = 0, []
        with contextlib.chdir(self.folder / "run"):
            for name, data in encode(lines).items():
                (self.folder / "run" / name).write_bytes(data)
                given = name
            options = [given if one == "DATA" else str(one) for one in options]
            if "--ledger" in options:
                unit = ["--unit", "who"] if "--unit" in options else []
                opened = ["ledger", "open", "t.toml", "--epsilon", "90", "--delta"]
                opened += [".1", *unit]
                assert CliRunner().invoke(app, opened).exit_code == 0
            result = CliRunner().invoke(app, options)
            (self.folder / "run" / given).unlink()
        self.stderr = result.stderr  # for the curator
        if not isinstance(result.exception, SystemExit | None):
            raise result.exception
        ticks = sorted(self.ticks, key=repr)  # calls come out of order
        return [result.exit_code, result.stdout, ticks, self.files()]

    def files(self):
        paths = [path for path in sorted(self.folder.rglob("*")) if path.is_file()]
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in paths}

    def reported(self):
        """Returns the files of a run with its reports: without the table, as it is."""
        with contextlib.chdir(self.folder / "run"):
            assert CliRunner().invoke(app, ["report", "out"]).exit_code == 0
        return self.files()

    def compare(self, options, lines, neighbours, encode, others=()):
        """Compares a command on lines with others; neighbours move what was charged."""
        shown = self.hooks.record(lambda: self.run(options, lines, encode))
        assert shown[0][1] == ("int", "0"), self.stderr
        reports = self.reported() if self.is_reported else None
        # Training and evaluation have records of their own: a unit moves one of them.
        parts = self.runs[0].parts.values() if self.runs else ()
        prices = [_replay.charged(one) for one in parts]
        price = max(prices) if prices and None not in prices else None
        prices = [price] * len(neighbours) + [None] * len(others)
        for table, most in zip([*neighbours, *others], prices, strict=True):
            again = functools.partial(self.run, options, table, encode)
            self.hooks.replay(again, shown, most)
        # A release states the guarantee that it was priced at before it began.
        assert len(self.runs) == len(self.prices) == len(self.stated)
        for price, release in zip(self.prices, self.stated, strict=True):
            assert release.privacy in (price if isinstance(price, tuple) else [price])
        # Reports read what was compared: the one of the last table stands for all.
        assert not self.is_reported or self.reported() == reports


def as_csv(lines):
    text = "\n".join([COLUMNS, *lines, ""])
    return {"data.csv": text.encode("utf-8", "surrogateescape")}


def as_euros(lines):
    """A file with decimal commas, and amounts with a currency."""
    lines = [f"{line.replace(',', ';').replace('.', ',')} EUR" for line in lines]
    (content,) = as_csv(lines).values()
    return {"data.csv": content.replace(COLUMNS.encode(), b"who;x;job;y")}


def as_dates(lines):
    """A file with dates in place of x, where x is a number, and of who."""

    def dated(line):
        try:
            who, x, rest = line.split(",", 2)
            day = datetime.date(2020, 1, 1) + datetime.timedelta(int(30 * float(x)))
            return f"2020-03-{int(who) + 1:02},{day:%d.%m.%Y},{rest}"
        except (ValueError, OverflowError):
            return line

    return as_csv(map(dated, lines))


def as_sheet(lines):
    """A sheet with numbers, texts without what XML cannot hold, a title and sums."""

    def cell(text):
        try:
            return float(text)
        except ValueError:
            return re.sub("[\0-\x1f\ud800-\udfff]", "?", text)

    rows = [map(cell, line.split(",")) for line in ["Jobs", COLUMNS, *lines, "Total,9"]]
    return {"data.xlsx": sheet([*row] for row in rows)}


def as_utf16(lines):
    text = "\n".join(["\ufeff" + COLUMNS, *lines])
    return {"data.csv": text.encode("utf-16-le", "surrogatepass")}


@pytest.fixture
def commands(hooks, tmp_path, monkeypatch):
    commands = Commands(hooks, tmp_path, monkeypatch)
    for name, text in SCHEMAS.items():
        (tmp_path / f"{name}.toml").write_text(text)
    return commands


def train(schema="squared", loss=None, **options):
    words = ["train", "DATA", "--schema", f"../{schema}.toml", "--epsilon", 2]
    words += ["--loss", loss or schema, "--output", "out"]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", *([value] if value != "" else [])]
    return words


def describe(*options):
    words = ["describe", "DATA", "--schema", "../open.toml", "--epsilon", 2]
    return [*words, "--output", "out", *options]


LIMITED = "--schema", "../limits.toml"
# With a ledger a command is refused unless it releases what was priced.
CURVES = {"model": "additive", "epsilon": 85}  # 60 records need as much for knots
CASES = {
    "linear model": train(),
    "latin-1": train(encoding="latin-1"),
    "euros": train(holdout=0.3, decimal=",", thousands=".", currency="EUR"),
    "sheet": train(skip_lines=1, last_lines=1, percent="", ledger="t.toml"),
    "labels": train("logistic", holdout=0.3, ledger="t.toml"),
    "classes": train("classes", "softmax", holdout=0.3, ledger="t.toml"),
    "intervals": train(intervals="", epsilon=40, ledger="t.toml", holdout=0.3),
    "intervals in ranges": train(
        *("open", "squared"), intervals="", epsilon=85, private_ranges=0.5
    ),
    "features": train(max_features=1, ledger="t.toml"),
    "exposures": train("poisson", holdout=0.3),
    "weights": train("weighted", "squared"),
    "curves": train(
        "logistic", **CURVES | {"epsilon": 40}, holdout=0.3, ledger="t.toml"
    ),
    "curves of weights": train("weighted", "squared", **CURVES),
    "curves in ranges": train(
        *("open", "huber"), **CURVES, private_ranges=0.5, checkpoint="kept"
    ),
    "curves of a sample": train("logistic", **CURVES, max_records=50),
    "ranges": train("open", "squared", private_ranges=0.5, ledger="t.toml"),
    "ranges of amounts": train("open", "squared", private_ranges=0.2, holdout=0.2),
    "sample": train(holdout=0.3, max_records=50, ledger="t.toml"),
    "checkpoint": train(checkpoint="kept", ledger="t.toml"),
    "description": describe("--by", "job", "--ledger", "t.toml", "--checkpoint", "k"),
    "description, sample": describe("--max-records", 50, "--ledger", "t.toml"),
    "dates": train("dates", "squared", holdout=0.3, ledger="t.toml"),
    "curves of dates": train("dates", "squared", **CURVES),
    "description of dates": describe("--schema", "../dates.toml"),
    "description, weights": describe(*LIMITED, "--weights", "y", "--by", "job"),
    "schema": ["schema", "DATA", "--target", "y", "--output", "new.toml"],
}
REPORTED = {"description", "description, weights", "euros", "intervals"}
REPORTED |= {"description, sample"}
OF_UNITS = {
    "held out": train(unit="who", holdout=0.5),
    "ranges": train("open", "squared", unit="who", private_ranges=0.5, epsilon=40),
    "dependent records": train(
        unit="who", records_per_unit=2, intervals="", epsilon=50, ledger="t.toml"
    ),
    "linear model": train(unit="who", records_per_unit=2, ledger="t.toml", holdout=0.5),
    "curves": train("logistic", **CURVES, unit="who", records_per_unit=2),
    "sample": train(unit="who", max_records=18),
    "description": describe("--unit", "who", "--records-per-unit", 2, "--by", "job"),
    "description, sample": describe("--unit", "who", "--max-records", 18),
    "description, weights": describe(*LIMITED, "--weights", "y", "--unit", "who"),
}


@pytest.mark.quick(8)
@pytest.mark.parametrize("name", CASES)
def test_commands_show_what_they_release(commands, name):
    lines = plain()
    neighbours = [[one, *lines[1:]] for one in (HOSTILE[1], "3,2.9,smith,1e30")]
    # And all records at once: what is seen is equal, however far the values move.
    hostile = [HOSTILE[i % len(HOSTILE)] for i in range(NUM)]
    encode = {"euros": as_euros, "sheet": as_sheet}.get(name, as_csv)
    encode = as_dates if "dates" in name else encode
    commands.is_reported = name in REPORTED
    commands.compare(CASES[name], lines, neighbours, encode, others=[hostile])


def test_no_half_of_a_line_end_of_utf16_shows(commands):
    lines = plain()
    odd = [lines[0], "1,\u0a05\u0100\ud8002,\u0d0a\u000d\u0a00,1", *lines[2:]]
    commands.compare(CASES["linear model"], lines, [odd], as_utf16)


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", OF_UNITS)
def test_no_person_moves_another(commands, name):
    # The first person has a record less, others, or more than count.
    lines, many = plain(), [f"0,{i},cook,{-i}" for i in range(9)]
    rest = [line for line in lines if not line.startswith("0,")]
    others = [lines[1:], [*rest, "0,1e308,zz,-1e308"], [*many, *rest]]
    commands.compare(OF_UNITS[name], lines, others, as_csv)
