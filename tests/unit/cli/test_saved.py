"""`dpjax predict`, `show` and `plot`: files in, the user's units out."""

import dataclasses
import xml.etree.ElementTree as ElementTree

import matplotlib.image
import numpy as np
import pytest

from dpjax.datasets import Categorical, Numeric
from dpjax.solvers import Curves
from tests.unit.cli.command import done, invoke, model_file, refusals, words_of
from tests.unit.models.test_model import TOWN, WEIGHTS, model

REFERRED = Categorical(("Ghent", "Lier", "Aalst"), "Lier")
NEW = "town,rooms,junk\nGhent,6,?\nMons,$7,1\nLier,,2\n"


@pytest.fixture
def folder(here):
    """A working directory with models, and files to predict."""
    (here / "out").mkdir()
    columns = {"rooms": Numeric(4, 2, limit=3.0), "town": TOWN}
    curves = Curves(WEIGHTS, np.array([[0.5, 0.0, -1.5]]), (-1.0, 0.0, 2.0), (0,), 3)
    sold = {"target": Categorical(("yes",)), "target_name": "sold"}
    amounts = {"params": curves, "link": "log", "target": Numeric(0, 10)}
    for name, changes in {
        **{"out/model.npz": {}, "m.png": {}},
        "label.npz": {"link": "logit", **sold},
        "curves.npz": {"target_name": "sold", **amounts},
        "constant.npz": {"params": np.zeros(1), "columns": {}},
        "referred.npz": {"columns": {"rooms": columns["rooms"], "town": REFERRED}},
    }.items():
        made = model(**{"columns": columns, "target_unit": ""} | changes)
        (here / name).write_bytes(model_file(made))
    (here / "new.csv").write_text(NEW)
    (here / "rooms.csv").write_text("rooms\n1\n")
    (here / "other.csv").write_text("towns,doors\nGhent,1\n")
    return here


def test_predictions_are_written_and_odd_cells_are_reported_to_the_curator(folder):
    result = done(invoke("predict", "out", "new.csv", "--output", "told/prices.csv"))
    content = (folder / "told" / "prices.csv").read_text()
    assert content == "predicted_price\n650\n350\n250\n"
    assert result.stdout == "wrote told/prices.csv\n"
    mark, cells = words_of(result.stderr).split("dpjax check tells more): ")
    assert mark.startswith("For the curator's eyes only, outside the guarantee")
    like = "rooms: 2 of 3 cells hold no number, most like $7 (try --currency '$'): they"
    assert f"{like} count as the center 4, as in training." in cells
    # Each town that is not listed is the reference of this model.
    assert "town" not in cells
    unlisted = "town: 1 of 3 cells match no category, such as 'Mons': they count as"
    shown = words_of(invoke("predict", "referred.npz", "new.csv").stderr)
    assert f"{unlisted} the reference 'Lier', as in training." in shown
    shown = words_of(invoke("predict", "referred.npz", "rooms.csv").stderr)
    assert "no column town: the reference 'Lier' is used for all records." in shown


def test_no_kept_cell_is_run_by_a_spreadsheet(folder):
    (folder / "new.csv").write_text("=x,rooms\n=1+1,-6\n@a,-\n+1|'c'!A,6\n")
    done(invoke("predict", "out", "new.csv", "--keep"))
    lines = (folder / "predictions.csv").read_text().splitlines()
    kept_cells = [line.rpartition(",")[0] for line in lines]
    assert kept_cells == ["'=x,rooms", "'=1+1,-6", "'@a,-", "'+1|'c'!A,6"]


def test_predictions_have_the_columns_that_are_kept(folder):
    def predicted(*options):
        result = done(invoke("predict", "out", "new.csv", *options))
        content = (folder / "predictions.csv").read_text()
        return content.splitlines(), words_of(result.stderr)

    (folder / "new.csv").write_text('note,rooms\n"a ""b"",\nc",6\n01,\n')
    lines, reported = predicted("--id", "note", "--quoted")
    assert lines == ["note,predicted_price", '"a ""b"",', 'c",550', "01,350"]
    assert "There is no column town: none of its categories is used for all" in reported
    assert "column rooms" not in reported
    lines, _ = predicted("--keep", "--id", "rooms", "--quoted")
    assert lines[::3] == ["rooms,note,predicted_price", ",01,350"]
    (folder / "new.csv").write_text("town;x\nGhent;1,5\nLier;2\n", "utf-16")
    lines, reported = predicted("--keep")
    assert lines == ["town,x,predicted_price", 'Ghent,"1,5",450', "Lier,2,250"]
    assert "There is no column rooms: the center 4 is used for all records." in reported
    (folder / "new.csv").write_bytes("town;rooms\nGhént;2.000,5 €\n".encode("cp1252"))
    lines, reported = predicted("--decimal", ",", "--thousands", ".", "--currency", "€")
    assert "town: the bytes of 1 of 1 cells do not decode" in reported
    assert "rooms: the bytes of 1 of 1 cells do not decode" in reported
    assert "--encoding says how the file is encoded: latin-1 or cp1252" in reported
    more = "--encoding", "cp1252", "--currency", "€", "--decimal", ",", "--keep"
    assert predicted(*more, "--thousands", ".")[0][1] == 'Ghént,"2.000,5 €",950'


def test_labels_are_predicted_by_their_probability(folder):
    done(invoke("predict", "label.npz", "new.csv"))
    title, *numbers = (folder / "predictions.csv").read_text().splitlines()
    assert title == "probability_sold=yes"
    assert float(numbers[0]) == pytest.approx(1 / (1 + np.exp(-3.5)), rel=1e-5)


SHOWN = {  # a model, and what is shown of it
    "out/model.npz": (
        "by hand of homes.csv",
        "Predicts price. A coefficient is what is added to it.",
        "rooms larger by 1 100",
        "town Ghent 100",
        "town Lier -100",
        "intercept all at 0 or in no category -50",
        "Privacy: epsilon = 1, delta = 1e-05. Replacing any one of the 40 records",
        "rooms is held within -2 and 10.",
    ),
    "referred.npz": (
        "town Ghent 100 town Lier (reference) 0 town Aalst -100",
        "intercept all at 0 or at the reference -50",
        "A cell in none of the categories counts as the reference.",
    ),
    "label.npz": ["Predicts the probability of sold = yes"],
    "curves.npz": (
        "Predicts the mean of sold. A factor is what it is multiplied by. A column "
        "has a factor of 1 at its center, or in no category.",
        "rooms 3 knots, -2 to 10 0.004087 to 90.02",  # e^-5.5 to e^4.5
        *("rooms 0 0.0302", "rooms 4 1", "rooms 8 12.18"),  # e^-3.5, e^2.5
        "Means lie between 0.01 and 300",  # a thousandth of a scale, and thirty
        "town Lier 0.3679",
        "constant all at their centers or in no category 16.49",
    ),
}


@pytest.mark.parametrize("name", SHOWN)
def test_a_model_is_shown_in_the_units_of_its_table(folder, name):
    shown = words_of(done(invoke("show", name)).stdout)
    for text in SHOWN[name]:
        assert text in shown


@pytest.mark.parametrize("name", ["out", "label.npz", "curves.npz"])
def test_a_plot_is_written_whole_or_not_at_all(folder, name, monkeypatch):
    for options in ([], ["--dark"]):
        result = invoke("plot", name, *options)
        assert (result.exit_code, result.stdout) == (0, "wrote curves.png\n")
        picture = matplotlib.image.imread(folder / "curves.png")
        assert (picture[0, 0, :3].mean() < 0.2) == bool(options)  # dark
        assert np.ptp(picture[..., :3]) > 0.7
    done(invoke("plot", name, "--output", "p/q.svg"))
    ElementTree.parse(folder / "p" / "q.svg")
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda *x, **y: 1 / 0)
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
    (folder / "bad.npz").write_bytes(model_file(made))
    done(invoke("plot", "bad.npz", "--output", "bad.svg"))
    ElementTree.parse(folder / "bad.svg")  # XML holds no control characters
    for result in (invoke("show", "bad.npz"), invoke("predict", "bad.npz", "new.csv")):
        text = result.stdout + result.stderr
        assert not set("\x1b\x9b\x07\u202e\ud800") & set(text)
        assert "\nPrivacy: epsilon = 0" not in text
        assert "\\x1b[2J\\x9b2J" in "".join(text.replace("│", " ").split())


test_bad_models_tables_and_outputs_are_refused = refusals(
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
