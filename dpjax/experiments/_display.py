"""What a person sees in the terminal."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from dpjax.datasets import Dataset
from dpjax.experiments._plan import Plan
from dpjax.experiments._report import score_name
from dpjax.experiments._train import OnStep, Run, Scores


def terminal(*, stderr: bool = False) -> Console:
    """A console that takes every text as it is: names may hold brackets and colons."""
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


@contextlib.contextmanager
def progress_bars(console: Console, num_steps: int) -> Iterator[OnStep]:
    """Shows a bar a method, and gives the function that moves it."""
    columns = TextColumn("{task.description:30}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=console) as progress:
        bars = {}

        def on_step(method: str, step: int) -> None:
            if method not in bars:
                bars[method] = progress.add_task(method, total=num_steps)
            progress.update(bars[method], completed=step)

        yield on_step


def show_error(console: Console, error: Exception) -> None:
    """Prints an error on one line, so that paths in it can be copied."""
    console.print(f"Error: {error}", style="red", soft_wrap=True)


def warn_of_seed(console: Console) -> None:
    """Warns that a known seed protects nobody."""
    console.print(
        "Warning: whoever knows --seed can subtract the noise, and then nothing is "
        "protected. Use it on public data only.",
        style="yellow",
    )


def show(
    console: Console,
    plan: Plan,
    data: Dataset,
    private: Run,
    scored: Sequence[tuple[Run, Scores]],
    *,
    is_public: bool,
) -> None:
    """Prints the run, the table where there are scores, and the privacy statement."""
    console.print(
        f"{data.name}: n = {len(data.features):,} records, "
        f"d = {len(data.feature_names)} features, {plan.loss} loss, "
        f"{plan.num_steps} steps with learning rate {plan.learning_rate:g}"
    )
    if scored:
        if not is_public:
            console.print(
                f"UNPROTECTED: the numbers of this table come from "
                f"{len(data.test_features):,} records held out (every fifth), and no "
                "guarantee covers them. The private model was trained on the rest.",
                style="bold red",
            )
        console.print(_table(data, scored))
    privacy = private.solution.privacy
    console.print(
        f"Privacy of {private.method}: epsilon = {privacy.epsilon:g}, "
        f"delta = {privacy.delta:g}. {privacy}"
    )
    if not scored:
        console.print(
            "No guarantee would cover test risks or comparisons, so there are none; "
            "--show-unprotected shows them."
        )


def show_paths(console: Console, paths: Sequence[Path]) -> None:
    """Prints where the files are, a line each, so that they can be copied."""
    for path in paths:
        console.print(f"wrote {path}", soft_wrap=True)


def _table(data: Dataset, scored: Sequence[tuple[Run, Scores]]) -> Table:
    is_accuracy = data.task == "classification"
    table = Table()
    table.add_column("method", no_wrap=True)
    table.add_column("private")
    for title in ("test risk", score_name(data)):
        table.add_column(title, justify="right")
    for run, scores in scored:
        score = scores.scores[-1]
        table.add_row(
            run.method,
            f"epsilon = {run.solution.privacy.epsilon:.4g}" if run.is_private else "no",
            f"{scores.risks[-1]:.4f}",
            f"{score:.1%}" if is_accuracy else f"{score:.4g}",
            style="bold" if run.is_private else None,
        )
    return table
