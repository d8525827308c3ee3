"""`dpjax parties`: starts a process a party, and trains one model with all of them."""

import dataclasses
import io
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

import dpjax
from dpjax import _validate, losses
from dpjax._rounding import rounded_up
from dpjax.datasets import Dataset
from dpjax.estimators import Clipping
from dpjax.experiments import _display, _report
from dpjax.experiments._sources import PUBLIC_SETS, public_name
from dpjax.parties import JaxTransport, num_secret_shares
from dpjax.solvers import Execution, Solution, multiparty_gradient_descent

_ROUND = "round "  # what a line begins with that a party prints for the terminal


@dataclass(frozen=True, kw_only=True)
class PartySettings:
    """What is asked of all parties alike; every entry is public.

    Attributes:
        source: the name of a public data set.
        num_parties: among how many its records are dealt out.
        epsilon: privacy of the run.
        delta: privacy of the run; n^-1.1 by default.
        clip_norm: the l2 norm that gradients are clipped to.
        steps: rounds of the protocol.
        learning_rate: step size; 1 for classification, else 0.1, by default.
        max_colluding: how many parties may put together what they know.
        max_dropouts: how many parties may drop out.
        output: folder to write to; dpjax-output/NAME-parties by default.
    """

    source: str
    num_parties: int = 4
    epsilon: float
    delta: float | None = None
    clip_norm: float = 1.0
    steps: int = 50
    learning_rate: float | None = None
    max_colluding: int = 1
    max_dropouts: int = 0
    output: str | None = None

    def __post_init__(self) -> None:
        _validate.require(
            public_name(self.source) is not None,
            "DATA",
            self.source,
            f"one of {', '.join(PUBLIC_SETS)}",
        )
        _validate.positive(**{"--epsilon": self.epsilon, "--clip-norm": self.clip_norm})
        _validate.count(**{"--steps": self.steps})
        if self.delta is not None:
            _validate.probability(**{"--delta": self.delta})
        if self.learning_rate is not None:
            _validate.positive(**{"--learning-rate": self.learning_rate})
        _validate.require(
            self.num_parties >= 2, "--num-parties", self.num_parties, "2 or more"
        )
        num_secret_shares(self.num_parties, self.max_colluding, self.max_dropouts)

    @property
    def folder(self) -> Path:
        """Where the files go."""
        return Path(self.output or f"dpjax-output/{public_name(self.source)}-parties")


def train_with_parties(settings: PartySettings) -> None:
    """Starts the parties on this machine, and prints what they have trained.

    Raises:
        ValueError: if the folder cannot be written to; nothing is started.
        RuntimeError: if a party fails; nothing is written.
    """
    _report.check_folder(settings.folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    messages = _display.terminal(stderr=True)
    with tempfile.TemporaryFile("w+") as errors:
        processes = [
            _start(settings, party, coordinator, errors)
            for party in range(settings.num_parties)
        ]
        relay = threading.Thread(target=_relay, args=(messages, processes[0]))
        relay.start()
        try:
            failed = _wait(processes)
        finally:
            for process in processes:
                process.kill()
                process.wait()
            relay.join()
        errors.seek(0)
        told = [line.strip() for line in errors if line.startswith("Error: ")]
    if failed:
        why = told[0].removeprefix("Error: ") if told else "see jax.distributed"
        raise RuntimeError(f"party {failed[0]} did not finish: {why}")
    content = json.loads((settings.folder / _report.REPORT).read_text())
    _show(_display.terminal(), settings, content)


def _start(
    settings: PartySettings, party: int, coordinator: str, errors: IO[str]
) -> subprocess.Popen[str]:
    arguments = [json.dumps(dataclasses.asdict(settings)), str(party), coordinator]
    return subprocess.Popen(
        [sys.executable, "-m", "dpjax.experiments._parties", *arguments],
        stdout=subprocess.PIPE if party == 0 else subprocess.DEVNULL,
        stderr=errors,
        text=True,
    )


def _wait(processes: Sequence[subprocess.Popen[str]]) -> list[int]:
    """Waits until all have finished or some have failed, and returns those."""
    while True:
        codes = [process.poll() for process in processes]
        failed = [party for party, code in enumerate(codes) if code]
        if failed or None not in codes:
            return failed
        time.sleep(0.05)


def _relay(console: Console, process: subprocess.Popen[str]) -> None:
    """Shows the rounds of a party while it runs; its runtime prints other lines too."""
    if process.stdout is not None:
        with process.stdout:
            for line in process.stdout:
                if line.startswith(_ROUND):
                    console.print(line.strip())


def _show(console: Console, settings: PartySettings, content: dict[str, Any]) -> None:
    privacy = content["privacy"]
    console.print(
        f"{content['data']}: {content['num_samples']:,} records of "
        f"{content['num_parties']} parties, {content['num_steps']} rounds\n"
        f"{content['score_name']} on test records: {content['score']:.4g}\n"
        f"Privacy: epsilon = {rounded_up(privacy['epsilon'], 6)}, "
        f"delta = {rounded_up(privacy['delta'], 6)}, "
        f"against outsiders and any {settings.max_colluding} of the parties. "
        f"{privacy['description']}"
    )
    _display.show_paths(
        console,
        [settings.folder / name for name in (_report.PARAMS, _report.REPORT)],
    )


def run_party(settings: PartySettings, party: int, coordinator: str) -> None:
    """Runs one party in this process; the first one writes the files.

    The party holds every K-th record of the data set, by index.
    """
    jax.distributed.initialize(
        coordinator, settings.num_parties, party, initialization_timeout=60
    )
    name = public_name(settings.source)
    data = PUBLIC_SETS[name or settings.source]()
    features, targets = (x[party :: settings.num_parties] for x in data.train)
    is_classification = data.task == "classification"

    def watch(step: int, params: jax.Array) -> None:
        if party == 0:
            size = float(jnp.linalg.norm(params))
            print(f"{_ROUND}{step}/{settings.steps}: |w| = {size:.3f}", flush=True)

    solution = multiparty_gradient_descent(
        losses.logistic if is_classification else losses.squared,
        jnp.zeros(features.shape[1]),
        (jnp.asarray(features), jnp.asarray(targets)),
        transport=JaxTransport(),
        epsilon=settings.epsilon,
        delta=settings.delta or len(data.features) ** -1.1,
        estimator=Clipping(settings.clip_norm),
        learning_rate=settings.learning_rate or (1.0 if is_classification else 0.1),
        num_steps=settings.steps,
        max_colluding=settings.max_colluding,
        max_dropouts=settings.max_dropouts,
        execution=Execution(
            callback=watch, callback_every=max(1, settings.steps // 10)
        ),
    )
    if party == 0:
        _report.write(settings.folder, _files(settings, data, solution))


def _files(
    settings: PartySettings, data: Dataset, solution: Solution
) -> dict[str, bytes]:
    weights = np.asarray(solution.params)
    predictions = data.test_features @ weights
    if data.task == "classification":
        score = np.mean((predictions > 0) == (data.test_targets > 0))
    else:
        score = np.mean(np.abs(predictions - data.test_targets))
    content = {
        "dpjax": dpjax.__version__,
        "data": data.name,
        "settings": dataclasses.asdict(settings),
        **solution.stats,
        "score_name": _report.score_name(data),
        "score": float(score),
        "privacy": {
            "epsilon": solution.privacy.epsilon,
            "delta": solution.privacy.delta,
            "relation": solution.privacy.relation.name,
            "description": solution.privacy.description,
        },
    }
    params = io.BytesIO()
    np.savez(params, params=weights, feature_names=np.array(data.feature_names))
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    return {_report.PARAMS: params.getvalue(), _report.REPORT: text.encode()}


def main(arguments: Sequence[str]) -> None:
    """Runs the party that `train_with_parties` has started."""
    settings, party, coordinator = arguments
    try:
        run_party(PartySettings(**json.loads(settings)), int(party), coordinator)
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        print(f"Error: {error}", file=sys.stderr, flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
