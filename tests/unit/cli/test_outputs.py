"""Where commands write: paths that are refused, and what a run leaves at its end."""

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

from dpjax.tables.cli._release import _files
from dpjax.tables.cli._schema import Schema
from dpjax.tables.cli._sources import Table
from tests.unit.cli.command import done, invoke, refused, tree

RELEASED = ["model.npz", "report.json"]
FOLDERS = "a/ d/ link->d"
APART = "--checkpoint must be apart from --output"
NO_LINK = "--checkpoint must be a folder and no symbolic link"
NO_RUN = "--checkpoint must be a folder of a run that was stopped"
NO_OUTPUT = "--output must be a folder that can be written to, or made"


def train(output, checkpoint, *options, data="data.csv", schema="schema.toml"):
    folders = ["--output", output, "--checkpoint", checkpoint]
    what = ["--schema", schema, "--target", "y", "--loss", "squared"]
    return invoke("train", data, *what, "--epsilon", 1, *folders, *options)


def arrange(words):
    """Makes folders `a/`, links `a->b`, and files."""
    for word in words.split():
        name, _, target = word.partition("->")
        if target:
            Path(name).symlink_to(target)
        elif name.endswith("/"):
            Path(name).mkdir(parents=True)
        else:
            Path(name).write_text("years of work")


@pytest.fixture
def unread(folder, monkeypatch):
    """The working directory, where reading a record would crash."""
    monkeypatch.setattr("dpjax.tables.cli._train.read_private", None)
    return folder


@pytest.mark.parametrize(
    ("words", "output", "checkpoint", "message"),
    [
        ("", "x", "x", APART),
        ("", "x/out", "x", APART),
        ("", "x", Path("x").absolute, APART),
        ("", "Café", "CAFE\u0301", APART),  # one folder on some disks
        ("", "out", ".", APART),
        (FOLDERS, "link/x", "d/x", APART),
        (FOLDERS, "link/../x", "x", APART),
        (FOLDERS, "d", "link", APART),
        (FOLDERS, "out", "link", NO_LINK),
        ("link->nowhere", "out", "link", NO_LINK),
        ("link->link", "out", "link", NO_LINK),
        ("link->link", "out", "link/x", NO_RUN),
        ("file", "out", "file", NO_RUN),
        ("kept/ file kept/key.npz->../file", "out", "kept", NO_RUN),
        ("d/ kept/ kept/states->../d", "out", "kept", NO_RUN),
        ("kept/ kept/thesis.tex", "out", "kept", NO_RUN),
        ("kept/states/Ohio/", "out", "kept", NO_RUN),
        ("link->nowhere", "link", "kept", NO_OUTPUT),
        ("file", "file/x", "kept", NO_OUTPUT),
        ("file/report.json/", "file", "kept", NO_OUTPUT),
        ("", "data.csv/out", "kept", NO_OUTPUT),
    ],
)
def test_bad_folders_are_refused_and_nothing_is_written(
    words, output, checkpoint, message, unread
):
    arrange(words)
    before = tree(unread)
    checkpoint = checkpoint() if callable(checkpoint) else checkpoint
    named = output if message == NO_OUTPUT else checkpoint
    refused(train(output, checkpoint), message, str(Path(named)))
    assert tree(unread) == before


@pytest.mark.parametrize("how", ["itself", "link", "hard link"])
@pytest.mark.parametrize("name", RELEASED)
def test_no_file_that_is_read_is_written_over(name, how, unread):
    (unread / "out").mkdir()
    data, there = unread / "out" / name, unread / "mine"
    if how == "itself":
        data.write_text("years of work")
    else:
        there.write_text("years of work")
        data.symlink_to(there) if how == "link" else data.hardlink_to(there)
        data = there
    before = tree(unread)
    for role, option in (("DATA", "data"), ("--schema", "schema")):
        rule = f"--output must be another file than {role} {data}, which is read"
        refused(train("out", "kept", **{option: data}), rule)
    assert tree(unread) == before


def test_no_file_that_is_read_is_removed(unread):
    arrange("kept/ kept/paid.npz")
    data, before = unread / "kept" / "paid.npz", tree(unread)
    rule = f"--checkpoint must be a folder that does not hold DATA {data}, since"
    refused(train("out", "kept", data=data), rule)
    refused(train("out", "kept", schema=data), "a folder that does not hold --schema")
    assert tree(unread) == before


def fails(error):
    return mock.Mock(side_effect=error)


def test_a_release_outlives_what_fails_after_it(folder, monkeypatch):
    error = KeyboardInterrupt()
    monkeypatch.setattr("dpjax.tables.cli._train._outputs.show", fails(error))
    # Beside the other folder, below a link, with a name that begins alike.
    arrange(FOLDERS)
    result = train("d/out", "link/../d/out-too")
    assert result.exit_code not in (0, 2)
    assert sorted(os.listdir("d/out")) == RELEASED
    assert not Path("d/out-too").exists()
    monkeypatch.setattr(type(folder), "rmdir", fails(OSError("busy")))
    result = train("out", "kept")
    assert result.exit_code not in (0, 2)
    assert sorted(os.listdir("out")) == RELEASED
    assert os.listdir("kept") == []  # nobody can find the key


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_signal_waits_until_the_key_is_gone(when, number, folder, monkeypatch):
    write, ended = _files.write_together, []

    def interrupted(*arguments, **options):
        if when == "before":
            signal.raise_signal(number)
        write(*arguments, **options)
        if when == "after":
            signal.raise_signal(number)

    monkeypatch.setattr(_files, "write_together", interrupted)
    handlers = {
        signal.SIGTERM: lambda *_: ended.append(os.listdir()),
        signal.SIGINT: signal.default_int_handler,  # in the background it is ignored
    }
    old = {x: signal.signal(x, handler) for x, handler in handlers.items()}
    try:
        result = train("out", "kept")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        for x, handler in old.items():
            signal.signal(x, handler)
    if number == signal.SIGINT:
        assert result.exit_code not in (0, 2)
    else:
        assert len(ended) == 1
        assert "kept" not in ended[0]
    assert sorted(os.listdir("out")) == RELEASED
    assert not (folder / "kept").exists()


@pytest.mark.parametrize("error", [ValueError("odd"), KeyboardInterrupt()])
def test_no_key_is_left_without_a_state(error, folder, monkeypatch):
    files = []

    def fail(*_, **__):
        files.append(os.listdir("kept"))
        raise error

    monkeypatch.setattr("dpjax.tables.cli._train.train_private", fail)
    assert train("out", "kept").exit_code != 0
    assert files == [["key.npz"]]
    assert not (folder / "kept").exists()
    assert not (folder / "out").exists()


def test_files_that_came_into_the_checkpoint_are_not_removed(folder, monkeypatch):
    write = _files.write_together

    def write_beside(*arguments, **options):
        Path("kept/thesis.tex").write_text("years of work")
        write(*arguments, **options)

    monkeypatch.setattr(_files, "write_together", write_beside)
    done(train("out", "kept"))
    assert os.listdir("kept") == ["thesis.tex"]


def test_a_key_that_cannot_be_removed_is_reported(folder, monkeypatch):
    busy = SimpleNamespace(rmtree=fails(OSError("busy")))
    monkeypatch.setattr("dpjax.tables.cli._release.shutil", busy)
    refused(train("out", "kept"), "--checkpoint", "could not be removed (busy)")
    assert os.listdir("kept") == ["states"]  # the key itself is gone
    assert not Path("out").exists()  # and nothing appears while there is a state


@pytest.mark.parametrize("holdout", [(), ("--holdout", 0.3)])
def test_the_key_is_gone_before_the_release_appears(holdout, folder, monkeypatch):
    replace, seen = os.replace, []

    def seeing(source, target):
        if target.name in RELEASED:
            seen.append(Path("kept").exists())
        replace(source, target)

    monkeypatch.setattr("os.replace", seeing)
    done(train("out", "kept", *holdout))
    assert seen == [False, False]


def test_a_key_is_of_one_command_on_the_same_records(folder, monkeypatch):
    options = "--holdout", 0.3
    with monkeypatch.context() as patch:
        patch.setattr(_files, "write_together", fails(OSError("no space")))
        assert train("out", "kept", *options).exit_code == 2
    before = Path("data.csv").read_text()
    lines = before.splitlines()
    table = Table("", {}, Schema({}, None), "", np.zeros(400, bool))
    is_held_out = table.held_out(0.3).is_test
    rows = [np.flatnonzero(mask)[0] + 1 for mask in (is_held_out, ~is_held_out)]
    for row, line in [(rows[0], "0.5,7"), (rows[1], "0.5,7"), (rows[1], "?,7")]:
        edited = [*lines[:row], line, *lines[row + 1 :]]
        Path("data.csv").write_text("\n".join(edited) + "\n")
        result = train("out", "kept", *options)
        refused(result, "options and records (for the curator's eyes only, outside the")
    Path("data.csv").write_text(before)
    others = ["--seed", 1], ["--epsilon", 2], ["--loss", "huber"]
    for other in ([], *([*options, *other] for other in others)):
        message = "--checkpoint must be new or of this run, with the same options and"
        refused(train("out", "kept", *other), message)
    assert not Path("out").exists()
    done(train("out", "kept", *options))
