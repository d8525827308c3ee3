"""Accuracy on Adult: objective perturbation against diffprivlib's logistic regression.

Both see the same records, scaled to norm 1 and with an intercept column among them, at
the same epsilon. diffprivlib's has delta = 0, dpjax's has delta = n^-1.1.
diffprivlib runs in an environment of its own:

    python -m venv peer && peer/bin/pip install diffprivlib==0.6.6 scikit-learn==1.6.1
    python -m benchmarks.objective_perturbation --peer-python peer/bin/python
"""

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

import dpjax
from benchmarks.page import table as markdown_table
from dpjax._default_delta import default_delta

# The regularization times n, a public choice; 1 is diffprivlib's default, C = 1.
STRENGTHS = [1.0, 3.0, 10.0, 30.0, 100.0]
PEER = """
import json, sys, time, warnings
import numpy as np
from diffprivlib.models import LogisticRegression

warnings.simplefilter("ignore")
data, settings = np.load(sys.argv[1]), json.loads(sys.argv[2])
results = []
for strength in settings["strengths"]:
    for seed in range(settings["num_seeds"]):
        start = time.perf_counter()
        model = LogisticRegression(
            epsilon=settings["epsilon"], data_norm=1.0, C=1 / strength,
            fit_intercept=False, random_state=seed, max_iter=1000)
        model.fit(data["features"], data["targets"])
        seconds = time.perf_counter() - start
        accuracy = model.score(data["test_features"], data["test_targets"])
        results.append([strength, accuracy, seconds])
print(json.dumps(results))
"""


def unit_rows(features):
    """Scales rows down to norm 1, a hair below it for the peer's own check."""
    features = np.asarray(features, np.float64)
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    return features / np.maximum(norms, 1.0) * (1 - 1e-12)


def ours(data, strengths, num_seeds, epsilon, **settings):
    """All seeds of each strength, as (strength, accuracy, seconds of one run)."""
    num_samples = len(data["targets"])
    results = []
    for strength in strengths:
        for seed in range(num_seeds):
            start = time.perf_counter()
            solution = dpjax.solvers.dp_objective_perturbation(
                data["features"],
                data["targets"],
                key=jax.random.key(seed),
                epsilon=epsilon,
                delta=default_delta(num_samples),
                regularization=strength / num_samples,
                **settings,
            )
            params = np.asarray(solution.params, np.float64)
            seconds = time.perf_counter() - start
            predicted = data["test_features"] @ params > 0
            accuracy = np.mean(predicted == (data["test_targets"] > 0))
            results.append([strength, accuracy, seconds])
    return results


def peers(data, python, **settings):
    """The same of diffprivlib, in a process of the other Python."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.npz"
        np.savez(path, **data)
        command = [python, "-c", PEER, str(path), json.dumps(settings)]
        result = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(result.stdout)


def rows(name, results):
    """The lines of the table: one a strength."""
    for strength in STRENGTHS:
        values = [result[1:] for result in results if result[0] == strength]
        accuracies, seconds = np.array(values).T
        yield [
            name,
            f"{strength:g}",
            f"{accuracies.mean():.4f}",
            f"{accuracies.std(ddof=1):.4f}",
            f"{accuracies.min():.4f}",
            float(np.median(seconds)),
        ]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer-python", help="a Python that has diffprivlib")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--num-seeds", type=int, default=10)
    options = parser.parse_args()
    adult = dpjax.datasets.adult()
    data = {
        "features": unit_rows(adult.features),
        "targets": adult.targets,
        "test_features": unit_rows(adult.test_features),
        "test_targets": adult.test_targets,
    }
    settings = {
        "strengths": STRENGTHS,
        "num_seeds": options.num_seeds,
        "epsilon": options.epsilon,
    }
    hinge = dpjax.solvers.MarginLoss.smoothed_hinge()
    table = [
        *rows("dpjax, logistic", ours(data, **settings)),
        *rows("dpjax, smoothed hinge", ours(data, loss=hinge, **settings)),
        *rows("dpjax, paper's noise", ours(data, calibration="paper", **settings)),
    ]
    if options.peer_python:
        table += rows("diffprivlib", peers(data, options.peer_python, **settings))
    header = ["method", "n lambda", "accuracy", "sd", "worst", "seconds"]
    print(markdown_table(header, table))


if __name__ == "__main__":
    main()
