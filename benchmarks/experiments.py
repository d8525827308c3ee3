"""The experiments of EXPERIMENTS.md: each prints its table.

    python -m benchmarks.experiments frank-wolfe
    python -m benchmarks.experiments language-model
    python -m benchmarks.experiments objective-perturbation --peer-python PYTHON

`frank-wolfe` is figure 1(b) of paper 004. `language-model` times steps of the private
transformer beside those by jax_privacy's parts. `objective-perturbation` compares
accuracy on Adult with diffprivlib's logistic regression, which runs in an environment
of its own: both see the same records, scaled to norm 1.
"""

import argparse
import json
import subprocess
import tempfile
import time
from functools import partial
from itertools import product
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import dpjax
from benchmarks.language_model import (
    BATCH_SIZE,
    L2_CLIP_NORM,
    LEARNING_RATE,
    init,
    loss_fn,
    windows,
)
from benchmarks.page import table
from benchmarks.speed import measure
from benchmarks.speed.case import Case, Method
from benchmarks.utility.problems import scaled_down
from dpjax._default_delta import default_delta
from dpjax.constraints import L1Ball
from dpjax.datasets._heavy_tailed import l1_ball_params
from dpjax.losses import MarginLoss
from dpjax.solvers import dp_frank_wolfe, dp_objective_perturbation

NUM_DRAWS, NUM_SEEDS = 4, 10
NOISE_MULTIPLIER = 0.5
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


def three_large(key, num_features):
    """Parameters with three large entries, and zeros."""
    del key
    return jnp.zeros(num_features).at[:3].set(jnp.array([0.5, -0.3, 0.2]))


PARAMS = {"l1 ball": l1_ball_params, "0.5, -0.3, 0.2": three_large}


def excess_risks(num_samples, num_features, params_fn, seed):
    """Of the paper's setting, the default one, zero weights; without a half."""
    problem = dpjax.datasets.linear_model(
        jax.random.key(seed),
        num_samples=num_samples,
        num_features=num_features,
        feature_law=dpjax.datasets.LogNormal(scale=0.6**0.5),
        noise_law=dpjax.datasets.Normal(scale=0.1**0.5),
        params_fn=params_fn,
    )

    def risk(params):
        return float(jnp.mean((problem.features @ params - problem.targets) ** 2))

    zeros = jnp.zeros(num_features)
    fits = [
        dp_frank_wolfe(
            *(dpjax.losses.squared, zeros, problem.data),
            key=jax.random.key(100 + seed),
            epsilon=1.0,
            constraint=L1Ball(1.0),
            calibration=calibration,
        ).params
        for calibration in ("paper", "tight")
    ]
    return [risk(params) - risk(problem.true_params) for params in (*fits, zeros)]


def frank_wolfe():
    rows = []
    for n, d, name in product((10_000, 90_000), (200, 800), PARAMS):
        risks = [excess_risks(n, d, PARAMS[name], seed) for seed in range(NUM_DRAWS)]
        means = (f"{risk:.4f}" for risk in np.mean(risks, axis=0))
        rows.append([f"{n:,}", str(d), name, *means])
    print(table(["n", "d", "w*", "paper's setting", "default", "zero weights"], rows))


def our_step(params, batch, noise_multiplier=NOISE_MULTIPLIER):
    """One private step of dpjax as a compiled function, and its arguments."""
    optimizer = dpjax.dp_sgd(
        LEARNING_RATE,
        dpjax.estimators.Clipping(L2_CLIP_NORM),
        noise_multiplier=noise_multiplier,
        key=jax.random.key(1),
    )

    def step(params, state, batch):
        grads = dpjax.gradients.streamed_grad(loss_fn)(params, batch)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return jax.jit(step), (params, optimizer.init(params), batch)


def peer_step(params, batch, microbatch_size, noise_multiplier=NOISE_MULTIPLIER):
    """One private step by the parts that the example of jax_privacy is made of."""
    import jax_privacy
    from jax_privacy import noise_addition

    grad_fn = jax_privacy.clipped_grad(
        loss_fn,
        l2_clip_norm=L2_CLIP_NORM,
        keep_batch_dim=False,
        normalize_by=len(batch),
        microbatch_size=microbatch_size,
    )
    privatizer = noise_addition.gaussian_privatizer(
        stddev=noise_multiplier * 2 * L2_CLIP_NORM / len(batch),
        prng_key=jax.random.key(1),
    )
    optimizer = optax.chain(privatizer, optax.sgd(LEARNING_RATE))

    def step(params, state, batch):
        updates, state = optimizer.update(grad_fn(params, batch), state, params)
        return optax.apply_updates(params, updates), state

    return jax.jit(step), (params, optimizer.init(params), batch)


def language_model():
    data, alphabet = windows()
    params, batch = init(jax.random.key(0), len(alphabet)), data[:BATCH_SIZE]
    methods = [Method("dpjax", partial(our_step, params, batch))]
    for size in (1, 8, None):
        name = "the whole batch" if size is None else f"microbatch {size}"
        make = partial(peer_step, params, batch, size)
        methods.append(Method(f"jax_privacy, {name}", make, "jax_privacy"))
    case = Case("language-model", "", lambda quick: methods, has_peak=False)
    rows, _ = measure.run_case(case, quick=False)
    times = {
        name: row["seconds"] for (_, name), row in rows.items() if "seconds" in row
    }
    shown = [[name, 1e3 * x, x / times["dpjax"]] for name, x in times.items()]
    print(table(["step", "ms", "times ours"], shown))


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
    names = ["frank-wolfe", "language-model", "objective-perturbation"]
    parser.add_argument("experiment", choices=names)
    parser.add_argument("--peer-python", help="a Python that has diffprivlib")
    options = parser.parse_args()
    if options.experiment == "objective-perturbation":
        objective_perturbation(options.peer_python)
    else:
        (frank_wolfe if options.experiment == "frank-wolfe" else language_model)()


if __name__ == "__main__":
    main()
