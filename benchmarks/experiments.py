"""An experiment of EXPERIMENTS.md, which needs another environment.

    python -m benchmarks.experiments --peer-python PYTHON

Accuracy of `dp_objective_perturbation` on Adult, beside diffprivlib's logistic
regression, which runs in an environment of its own: both see the same records, scaled
to norm 1.
"""

import argparse
import json
import subprocess
import tempfile
import time
from itertools import product
from pathlib import Path

import jax
import numpy as np

import dpjax
from benchmarks.page import table
from benchmarks.utility.problems import scaled_down
from dpjax._default_delta import default_delta
from dpjax.losses import MarginLoss
from dpjax.solvers import dp_objective_perturbation

NUM_SEEDS = 10
# The regularization times n, a public choice; 1 is diffprivlib's default, C = 1.
STRENGTHS = [1.0, 3.0, 10.0, 30.0, 100.0]
PEER = """
import json, sys, time, warnings
import numpy as np
from diffprivlib.models import LogisticRegression

warnings.simplefilter("ignore")
data, strengths, num_seeds = np.load(sys.argv[1]), *json.loads(sys.argv[2])
results = []
for strength in strengths:
    for seed in range(num_seeds):
        start = time.perf_counter()
        model = LogisticRegression(
            epsilon=1.0, data_norm=1.0, C=1 / strength,
            fit_intercept=False, random_state=seed, max_iter=1000)
        model.fit(data["features"], data["targets"])
        seconds = time.perf_counter() - start
        accuracy = model.score(data["test_features"], data["test_targets"])
        results.append([strength, accuracy, seconds])
print(json.dumps(results))
"""


def ours(data, **settings):
    """All seeds of each strength, as (strength, accuracy, seconds of one run)."""
    num_samples = len(data["targets"])
    for strength, seed in product(STRENGTHS, range(NUM_SEEDS)):
        start = time.perf_counter()
        solution = dp_objective_perturbation(
            *(data["features"], data["targets"]),
            key=jax.random.key(seed),
            epsilon=1.0,
            delta=default_delta(num_samples),
            regularization=strength / num_samples,
            **settings,
        )
        params = np.asarray(solution.params, np.float64)
        seconds = time.perf_counter() - start
        predicted = data["test_features"] @ params > 0
        yield strength, np.mean(predicted == (data["test_targets"] > 0)), seconds


def peers(data, python):
    """The same of diffprivlib, in a process of the other Python."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.npz"
        np.savez(path, **data)
        settings = json.dumps([STRENGTHS, NUM_SEEDS])
        command = [python, "-c", PEER, str(path), settings]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def objective_perturbation(peer_python):
    adult = dpjax.datasets.load("adult")
    data = {
        # A hair below norm 1, for the peer's own check.
        "features": scaled_down(adult.features.astype(float), 1 - 1e-12),
        "targets": adult.targets,
        "test_features": scaled_down(adult.test_features.astype(float), 1 - 1e-12),
        "test_targets": adult.test_targets,
    }
    results = {
        "dpjax, logistic": ours(data),
        "dpjax, smoothed hinge": ours(data, loss=MarginLoss.smoothed_hinge()),
        "dpjax, paper's noise": ours(data, calibration="paper"),
    }
    if peer_python:
        results["diffprivlib"] = peers(data, peer_python)
    rows = []
    for name, found in results.items():
        values = np.array(list(found)).reshape(len(STRENGTHS), NUM_SEEDS, 3)
        for strength, (_, accuracy, seconds) in zip(
            STRENGTHS, values.transpose(0, 2, 1), strict=True
        ):
            numbers = accuracy.mean(), accuracy.std(ddof=1), accuracy.min()
            cells = (f"{x:.4f}" for x in numbers)
            rows.append([name, f"{strength:g}", *cells, float(np.median(seconds))])
    print(table(["method", "n lambda", "accuracy", "sd", "worst", "seconds"], rows))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python", help="a Python that has diffprivlib")
    objective_perturbation(parser.parse_args().peer_python)


if __name__ == "__main__":
    main()
