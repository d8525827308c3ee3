"""`dpjax parties`: starts a process for each party, which train one model."""

import dataclasses
import importlib.util
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import IO, Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

import dpjax
from dpjax import datasets, losses
from dpjax._default_delta import default_delta
from dpjax._rounding import claim
from dpjax.cli import _report
from dpjax.cli._command_settings import PartySettings
from dpjax.cli._options import FROM_SYSTEM
from dpjax.cli._settings import public_name
from dpjax.cli._terminal import show_paths, terminal
from dpjax.datasets import Dataset
from dpjax.estimators import Clipping
from dpjax.parties import JaxTransport, SecureSum
from dpjax.solvers import Execution, Solution, dp_multiparty_gradient_descent

_ROUND = "round "  # the prefix of lines that are shown in the terminal


def train_with_parties(settings: PartySettings) -> None:
    """Starts the parties on this machine, and prints the trained model's scores.

    Raises:
        ImportError: If the extra `parties` is not installed; nothing is started.
        OSError: if the records are not on this machine; nothing is started.
        ValueError: If the folder cannot be written to; nothing is started.
        ChildProcessError: if a party fails; nothing is written.
    """
    if importlib.util.find_spec("cryptography") is None:
        raise ImportError('Parties need cryptography: pip install "dpjax[parties]".')
    _report.check_folder(settings.folder)
    _public_set(settings)  # so that a missing data set fails here, not in each party
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    messages = terminal(stderr=True)
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
        raise ChildProcessError(f"party {failed[0]} did not finish: {why}")
    content = json.loads((settings.folder / _report.REPORT).read_text())
    _show(terminal(), settings, content)


def _public_set(settings: PartySettings) -> Dataset:
    return datasets.load(public_name(settings.source) or settings.source)


def _start(
    settings: PartySettings, party: int, coordinator: str, errors: IO[str]
) -> subprocess.Popen[str]:
    options = json.dumps(dataclasses.asdict(settings), default=str)
    return subprocess.Popen(
        [sys.executable, "-m", "dpjax.cli._parties", options, str(party), coordinator],
        stdout=subprocess.PIPE if party == 0 else subprocess.DEVNULL,
        stderr=errors,
        text=True,
    )


def _wait(processes: Sequence[subprocess.Popen[str]]) -> list[int]:
    """Waits until all have finished or some have failed; returns the failed ones."""
    while True:
        codes = [process.poll() for process in processes]
        failed = [party for party, code in enumerate(codes) if code]
        if failed or None not in codes:
            return failed
        time.sleep(0.05)


def _relay(console: Console, process: subprocess.Popen[str]) -> None:
    """Shows the rounds of a party while it runs, without other lines of its output."""
    if process.stdout is not None:
        with process.stdout:
            for line in process.stdout:
                if line.startswith(_ROUND):
                    console.print(line.strip())


def _show(console: Console, settings: PartySettings, content: dict[str, Any]) -> None:
    privacy = content["privacy"]
    console.print(
        f"{content['data']}: {content['num_samples']:,} records of "
        f"{content['num_parties']} parties, {content['num_steps']} rounds"
    )
    console.print(f"{content['score_name']} on test records: {content['score']:.4g}")
    console.print(
        f"Privacy: {claim(privacy['epsilon'], privacy['delta'])}, "
        f"against outsiders and any {settings.max_colluding} of the parties. "
        f"{privacy['description']}"
    )
    show_paths(
        console, [settings.folder / name for name in (_report.MODEL, _report.REPORT)]
    )


def run_party(settings: PartySettings, party: int, coordinator: str) -> None:
    """Runs one party in this process; the first one writes the files.

    The party holds every K-th record of the data set, by index.
    """
    jax.distributed.initialize(
        coordinator, settings.num_parties, party, initialization_timeout=60
    )
    data = _public_set(settings)
    features, targets = (x[party :: settings.num_parties] for x in data.train)
    is_classification = data.task == "classification"

    def watch(step: int, params: jax.Array) -> None:
        if party == 0:
            size = float(jnp.linalg.norm(params))
            print(f"{_ROUND}{step}/{settings.num_steps}: |w| = {size:.3f}", flush=True)

    solution = dp_multiparty_gradient_descent(
        losses.logistic if is_classification else losses.squared,
        jnp.zeros(features.shape[1]),
        (jnp.asarray(features), jnp.asarray(targets)),
        secure_sum=SecureSum(
            JaxTransport(),
            max_colluding=settings.max_colluding,
            max_dropouts=settings.max_dropouts,
        ),
        epsilon=settings.epsilon,
        delta=settings.delta or default_delta(len(data.features)),
        estimator=Clipping(settings.clip_norm),
        learning_rate=settings.learning_rate or (1.0 if is_classification else 0.1),
        num_steps=settings.num_steps,
        execution=Execution(
            callback=watch, callback_every=max(1, settings.num_steps // 10)
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
    asked = dataclasses.asdict(settings) | {"steps": settings.num_steps}
    del asked["quick"]
    method, score_name = "DP-GD among parties", _report.score_name(data)
    privacy = _report.statement(solution.privacy)
    line = {"method": method, "epsilon": privacy["epsilon"], "delta": privacy["delta"]}
    options = "num_parties", "max_colluding", "max_dropouts", "learning_rate"
    content = {
        "dpjax": dpjax.__version__,
        "data": data.name,
        "settings": asked,
        **solution.stats,
        "score_name": score_name,
        "score": float(score),
        # As for `dpjax train`, for `dpjax report`:
        "is_public": True,
        "feature_names": list(data.feature_names),
        "method": method,
        "loss": "logistic" if data.task == "classification" else "squared",
        "l2": 0.0,
        "arguments": {name: asked[name] for name in (*options, "clip_norm")},
        "stats": dict(solution.stats),
        "comparison": [{**line, score_name: float(score)}],
        # Each party draws noise and masks of its own.
        "privacy": privacy | {"noise_key": FROM_SYSTEM["threefry"]},
    }
    model = _report.model_of(data, solution, method=method, link="identity")
    return _report.files(model, content)


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
