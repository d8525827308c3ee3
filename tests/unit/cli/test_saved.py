"""`dpjax predict`, `show` and `plot`: files in, the user's units out."""

import dataclasses
import xml.etree.ElementTree as ElementTree

import matplotlib.image
import numpy as np
import pytest

from dpjax.datasets import Categorical, Numeric
from dpjax.solvers import Curves
from tests.unit.cli.command import done, invoke, model_content, refusals
from tests.unit.models.test_model import TOWN, WEIGHTS, model

SOLD = Categorical(("yes",))
NEW = "town,rooms,junk\nGhent,6,?\nMons,$7,1\nLier,,2\n"


@pytest.fixture
def folder(here):
    """A working directory with models, and files to predict."""
    (here / "out").mkdir()
    columns = {"rooms": Numeric(4, 2, limit=3.0), "town": TOWN}
    curves = Curves(WEIGHTS, np.array([[0.5, 0.0, -1.5]]), (-1.0, 0.0, 2.0), (0,), 3)
    amounts = {"params": curves, "link": "log", "target": Numeric(0, 10)}
    for name, changes in {
        **{"out/model.npz": {}, "m.png": {}},
        "label.npz": {"link": "logit", "target": SOLD, "target_name": "sold"},
        "curves.npz": {"target_name": "sold", **amounts},
        "constant.npz": {"params": np.zeros(1), "columns": {}},
    }.items():
        made = model(**{"columns": columns, "target_unit": ""} | changes)
        (here / name).write_bytes(model_content(made))
    (here / "new.csv").write_text(NEW)
    (here / "other.csv").write_text("towns,doors\nGhent,1\n")
    return here


def test_predictions_and_what_is_said_of_cells(folder):
    result = done(invoke("predict", "out", "new.csv", "--output", "told/prices.csv"))
    told = (folder / "told" / "prices.csv").read_text()
    assert told == "predicted_price\n650\n350\n250\n"
    assert result.stdout == "wrote told/prices.csv\n"
    mark, said = " ".join(result.stderr.split()).split("dpjax check tells more): ")
    assert mark.startswith("For the curator's eyes only, outside the guarantee")
    like = "rooms: 2 of 3 cells hold no number, most like $7 (try --currency '$'): they"
    assert f"{like} count as the center of the column, as in training." in said
    assert "town: 1 of 3 cells match no category: they count as none of them" in said


def test_no_kept_cell_is_run_by_a_spreadsheet(folder):
    (folder / "new.csv").write_text("=x,rooms\n=1+1,-6\n@a,-\n+1|'c'!A,6\n")
    done(invoke("predict", "out", "new.csv", "--keep"))
    lines = (folder / "predictions.csv").read_text().splitlines()
    assert lines[0] == "'=x,rooms,predicted_price"
    kept = [line.rsplit(",", 1)[0] for line in lines[1:]]
    assert kept == ["'=1+1,-6", "'@a,-", "'+1|'c'!A,6"]


def test_predictions_join_by_what_is_kept(folder):
    def told(*options):
        result = done(invoke("predict", "out", "new.csv", *options))
        content = (folder / "predictions.csv").read_text()
        return content.splitlines(), " ".join(result.stderr.split())

    (folder / "new.csv").write_text('note,rooms\n"a ""b"",\nc",6\n01,\n')
    lines, said = told("--id", "note", "--quoted")
    assert lines == ["note,predicted_price", '"a ""b"",', 'c",550', "01,350"]
    assert "There is no column town: none of its categories is used for all" in said
    assert "column rooms" not in said
    lines, _ = told("--keep", "--id", "rooms", "--quoted")
    assert lines[::3] == ["rooms,note,predicted_price", ",01,350"]
    (folder / "new.csv").write_text("town;x\nGhent;1,5\nLier;2\n", "utf-16")
    lines, said = told("--keep")
    assert lines == ["town,x,predicted_price", 'Ghent,"1,5",450', "Lier,2,250"]
    assert "There is no column rooms: the center 4 is used for all records." in said
    (folder / "new.csv").write_bytes("town;rooms\nGhént;2.000,5 €\n".encode("cp1252"))
    lines, said = told("--decimal", ",", "--thousands", ".", "--currency", "€")
    assert "town: the bytes of 1 of 1 cells do not decode" in said
    assert "rooms: the bytes of 1 of 1 cells do not decode" in said
    assert "--encoding says how the file is encoded: latin-1 or cp1252" in said
    more = "--encoding", "cp1252", "--currency", "€", "--decimal", ",", "--keep"
    assert told(*more, "--thousands", ".")[0][1] == 'Ghént,"2.000,5 €",950'


def test_probabilities(folder):
    done(invoke("predict", "label.npz", "new.csv"))
    title, *numbers = (folder / "predictions.csv").read_text().splitlines()
    assert title == "probability_sold=yes"
    assert float(numbers[0]) == pytest.approx(1 / (1 + np.exp(-3.5)), rel=1e-5)


def test_a_model_is_shown_in_the_units_of_its_table(folder):
    result = done(invoke("show", "out/model.npz"))
    shown = " ".join(result.stdout.replace("│", " ").split())
    for text in (
        "by hand of homes.csv",
        "Predicts price. A coefficient is what is added to it.",
        "rooms larger by 1 100",
        "town Ghent 100",
        "town Lier -100",
        "intercept all at 0 or in no category -50",
        "Privacy: epsilon = 1, delta = 1e-05. Replacing any one of the 40 records",
        "rooms is held within -2 and 10.",
    ):
        assert text in shown
    shown = " ".join(invoke("show", "label.npz").stdout.split())
    assert "Predicts the probability of sold = yes" in shown


def test_curves_are_shown_in_the_units_of_its_table(folder):
    shown = " ".join(invoke("show", "curves.npz").stdout.replace("│", " ").split())
    for text in (
        "Predicts the mean of sold. A factor is what it is multiplied by. A column "
        "has a factor of 1 at its center, or in no category.",
        "rooms 3 knots, -2 to 10 0.004087 to 90.02",  # e^-5.5 to e^4.5
        *("rooms 0 0.0302", "rooms 4 1", "rooms 8 12.18"),  # e^-3.5, e^2.5
        "town Lier 0.3679",
        "constant all at their centers or in no category 16.49",
    ):
        assert text in shown


@pytest.mark.parametrize("name", ["out", "label.npz", "curves.npz"])
def test_a_plot_is_a_whole_picture(folder, name):
    for options in ([], ["--dark"]):
        result = invoke("plot", name, *options)
        assert (result.exit_code, result.stdout) == (0, "wrote curves.png\n")
        picture = matplotlib.image.imread(folder / "curves.png")
        assert (picture[0, 0, :3].mean() < 0.2) == bool(options)  # dark
        assert np.ptp(picture[..., :3]) > 0.7
    done(invoke("plot", name, "--output", "p/q.svg"))
    ElementTree.parse(folder / "p" / "q.svg")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("matplotlib.figure.Figure.savefig", lambda *x, **y: 1 / 0)
        assert isinstance(invoke("plot", name).exception, ZeroDivisionError)
    assert np.array_equal(matplotlib.image.imread(folder / "curves.png"), picture)


def test_no_control_character_of_a_model_reaches_the_terminal(folder):
    bad = "\x1b[2J\x9b2J\nPrivacy: epsilon = 0\x07\u202e\ud800"
    made = model(
        columns={bad: Numeric(), "town": Categorical((bad, "Lier"))},
        privacy=dataclasses.replace(model().privacy, description=bad),
        **dict.fromkeys(["target_name", "method", "data", "target_unit"], bad),
        versions={bad: bad},
    )
    (folder / "bad.npz").write_bytes(model_content(made))
    done(invoke("plot", "bad.npz", "--output", "bad.svg"))
    ElementTree.parse(folder / "bad.svg")  # XML holds no control characters
    for result in (invoke("show", "bad.npz"), invoke("predict", "bad.npz", "new.csv")):
        text = result.stdout + result.stderr
        assert not set("\x1b\x9b\x07\u202e\ud800") & set(text)
        assert "\nPrivacy: epsilon = 0" not in text
        assert "\\x1b[2J\\x9b2J" in "".join(text.replace("│", " ").split())


test_what_is_refused = refusals(
    """
plot none.npz => none.npz
plot out --output p.pdf => --output must be a file that ends in .png or .svg
plot out --output new.csv/p.png => --output must be a file, in a folder
plot m.png --output m.png => --output must be another file than MODEL m.png
plot constant.npz => MODEL must be a model of at least one column, got
predict new.csv new.csv => MODEL must be a file that dpjax train has written
predict out other.csv => with one of the columns that the model reads, ['rooms
predict out new.csv --id who => --id must be a column of
predict out new.csv --output new.csv => --output must be another file
"""
)
