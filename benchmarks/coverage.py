"""How often the intervals of models and of quantiles hold the population's.

Laws of a linear model have an intercept and ten features, usual laws eight or four,
additive models two curves or five. Records of persons depend on each other. A
coefficient is covered too seldom where more repetitions miss it than 7 percent explain,
at 1 percent for all.
"""

import math
import warnings
from functools import partial
from itertools import product
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logit, ndtr
from scipy import optimize, special, stats

from benchmarks import page, populations, record
from dpjax import losses
from dpjax.gradients import by_user
from dpjax.losses import LinearLoss
from dpjax.solvers import dp_additive_model, dp_linear_model, dp_quantile

PATH = record.RESULTS / "coverage.json"
D = 10
WEIGHTS = np.r_[np.linspace(1, -1, D), 1.0].astype(np.float32)
RUNS = 400
AT_ONCE = 20  # of them by one program
PERSON = 5  # records of a person
NUM_NEWTON = 4  # steps without privacy, from the truth


def features_of(key, num_samples):
    lags = np.abs(np.subtract.outer(np.arange(D), np.arange(D)))
    root = jnp.asarray(np.linalg.cholesky(0.5**lags), "float32")
    x = jax.random.normal(key, (num_samples, D))
    return jnp.concatenate([x @ root.T, jnp.ones((num_samples, 1))], axis=1)


def normal(key, x):
    return jax.random.normal(key, (len(x),))


def lognormal(key, x):
    return jnp.exp(normal(key, x)) - math.exp(0.5)


# Noise of a mean of zero, whatever the columns are.
NOISE = {
    "normal": normal,
    "t3": lambda key, x: jax.random.t(key, 3, (len(x),)),
    "lognormal": lognormal,
    "heteroscedastic": lambda key, x: normal(key, x) * jnp.sqrt(0.5 + x[:, 0] ** 2 / 2),
    "skewed": lambda key, x: lognormal(key, x) * jnp.exp(x[:, 0] / 2),
}


def usual(columns, outcome, d, positives=0.3):
    """A law of d columns of a kind, and of targets, counts or labels of them."""
    lags = np.abs(np.subtract.outer(np.arange(d), np.arange(d)))
    root = np.linalg.cholesky((0.9 if columns == "correlated" else 0.5) ** lags)
    root, slopes = jnp.asarray(root, "float32"), np.linspace(1, -1, d)
    sizes = {"labels": (slopes / 2, 0.0), "counts": (slopes / 4, -0.5)}
    mean = positives * math.exp(0.32)
    sizes["amounts"] = mean / 2 * 0.60571 * np.eye(d)[0], mean  # by Stein's lemma
    truth = np.append(*sizes.get(outcome, (slopes, 1.0))).astype(np.float32)

    def rows(key, num_samples):
        if columns in ("t3", "t5"):
            degrees = int(columns[1:])
            z = jax.random.t(key, degrees, (num_samples, d)) * (1 - 2 / degrees) ** 0.5
        else:
            z = jax.random.normal(key, (num_samples, d))
        z = z @ root.T
        if columns == "lognormal":
            z = (jnp.exp(0.8 * z) - math.exp(0.32)) / 1.3
        if columns == "binary":
            z = (z > np.linspace(-1, 1, d)).astype("float32")
        if columns == "rare categories":  # of 30, 15, 8 and 4 percent
            ends = np.cumsum([0, 0.3, 0.15, 0.08, 0.04])[: d // 2 + 1]
            at = jax.random.uniform(jax.random.fold_in(key, 1), (num_samples, 1))
            is_one = (at >= ends[:-1]) & (at < ends[1:])
            z = jnp.concatenate([z[:, : d - d // 2], is_one], axis=1)
        return jnp.concatenate([z, jnp.ones_like(z[:, :1])], axis=1)

    if outcome == "labels":  # with this share of positives
        scores = np.asarray(rows(jax.random.key(0), 200_000)) @ truth

        def off(level):
            return np.mean(special.expit(scores + level)) - positives

        truth[-1] = optimize.brentq(off, -20, 20)

    def draw(key, num_samples):
        x_key, key = jax.random.split(key)
        x = rows(x_key, num_samples)
        scores, shape = x @ truth, (num_samples,)
        if outcome == "labels":
            targets = jnp.sign(scores + jax.random.logistic(key, shape))
        elif outcome == "counts":
            targets = jax.random.poisson(key, jnp.exp(scores)).astype("float32")
        elif outcome == "amounts":  # lognormal with this chance, else zero
            first, key = jax.random.split(key)
            targets = jnp.exp(0.8 * normal(first, x)) * (1 + jnp.tanh(x[:, 0]) / 2)
            targets = jnp.where(jax.random.uniform(key, shape) < positives, targets, 0)
        else:
            targets = scores + NOISE[outcome](key, x)
        return x, targets, jnp.zeros(num_samples)

    kinds = {"labels": losses.logistic, "counts": losses.poisson(10.0)}
    return kinds.get(outcome, losses.squared), truth, draw


def persons(outcome):
    """A law of persons with five records, who share half of all variances."""
    truth = np.array([1.0, 0.3, -0.3, -1.0, 0.5], np.float32)

    def shared(key, shape):
        keys = jax.random.split(key)
        own, of_all = (math.sqrt(0.5) * jax.random.normal(k, shape) for k in keys)
        return (own + of_all[:, :1]).reshape(-1, *shape[2:])

    def draw(key, num_samples):
        x_key, key = jax.random.split(key)
        size = num_samples // PERSON, PERSON
        x = jnp.append(shared(x_key, (*size, 4)), jnp.ones((num_samples, 1)), axis=1)
        noise = shared(key, size)
        targets = x @ truth + noise
        if outcome == "labels":  # of logistic noise
            targets = jnp.sign(x @ truth + logit(ndtr(noise)))
        return x, targets, jnp.zeros(num_samples)

    loss = losses.logistic if outcome == "labels" else losses.squared
    return loss, truth, draw


def rare(key, num_samples):
    x_key, label_key = jax.random.split(key)
    x = features_of(x_key, num_samples)
    chances = jax.nn.sigmoid(x @ RARE)
    is_one = jax.random.uniform(label_key, num_samples) < chances
    return x, jnp.where(is_one, 1.0, -1.0), jnp.zeros(num_samples)


def claims(key, num_samples):
    x_key, exposure_key, count_key = jax.random.split(key, 3)
    x = features_of(x_key, num_samples)
    offsets = jnp.log(jax.random.uniform(exposure_key, num_samples, minval=0.05))
    counts = jax.random.poisson(count_key, jnp.exp(x @ CLAIMS + offsets))
    return x, counts.astype("float32"), offsets


RARE = np.r_[WEIGHTS[:-1] / 2, -3.25].astype(np.float32)  # 5 percent of positives
CLAIMS = np.r_[WEIGHTS[:-1] / 5, -1].astype(np.float32)
LAWS = {
    "normal": usual("normal", "normal", D),
    "heavy tails": usual("t5", "t3", D),
    "lognormal": usual("normal", "lognormal", D),
    "heteroscedastic": usual("normal", "heteroscedastic", D),
    "skewed by a feature": usual("normal", "skewed", D),
    "correlated": usual("correlated", "normal", D),
    "few positives": (losses.logistic, RARE, rare),
    "claims": (losses.poisson(10.0), CLAIMS, claims),
}
KINDS = (
    *("normal, normal", "normal, lognormal", "lognormal, normal", "t3, t3"),
    *("correlated, normal", "binary, normal", "rare categories, normal"),
    *("normal, labels", "normal, counts"),
)
# Columns and outcomes, the number of columns, records, epsilon.
USUAL = {
    (f"{kind}, {d}", *size): partial(usual, *kind.split(", "), d)
    for d, *size in ((8, 2_000, 1.0), (8, 1_000, 3.0), (4, 1_000, 1.0))
    for kind in KINDS
} | {
    (f"{x}, {share:g} positive", 20_000, e): partial(usual, x, "labels", 8, share)
    for e, share, x in product(
        *((1.0, 3.0), (0.02, 0.043, 0.1), ("normal", "rare categories"))
    )
}
USUAL |= {
    (f"amounts, {share:g} positive", n, e): partial(
        usual, "normal", "amounts", 4, share
    )
    for n, e, share in product((4_000, 20_000), (0.3, 1.0, 3.0), (0.15, 0.4, 1.0))
}
USUAL |= {
    (f"persons, {outcome}, 4", *size): partial(persons, outcome)
    for size in ((20_000, 1.0), (20_000, 3.0), (100_000, 1.0))
    for outcome in ("normal", "labels")
}
# Columns of curves, of unit size near zero; loss, number of columns, records, epsilon.
CURVES = {
    "normal": jax.random.normal,
    "heavy tails": lambda key, shape: jax.random.t(key, 3.0, shape) / 1.5,
    "few beyond 1": lambda key, shape: jax.random.normal(key, shape) * 0.5,
}
BANDS = [
    *(("bands, normal, squared, 2", *size) for size in ((20_000, 1.0), (20_000, 3.0))),
    *((f"bands, {x}, squared, 2", 100_000, 1.0) for x in ("normal", "few beyond 1")),
    ("bands, heavy tails, squared, 2", 20_000, 3.0),
    ("bands, normal, logistic, 2", 20_000, 3.0),
    ("bands, normal, squared, 5", 20_000, 3.0),
]
GRID = np.array([-4.0, -2.0, -1.0, -0.5, 0.5, 1.0, 2.0, 4.0])
QUANTILES = 0.1, 0.5, 0.9
# Laws of samples, and four thousand bins.
QUANTILE_LAWS = {
    "quantiles, normal": (stats.norm(), jax.random.normal, np.linspace(-8, 8, 4_001)),
    "quantiles, t3": (
        *(stats.t(3), lambda key, shape: jax.random.t(key, 3, shape)),
        np.linspace(-20, 20, 4_001),
    ),
    "quantiles, lognormal": (
        *(stats.lognorm(1), lambda key, shape: jnp.exp(jax.random.normal(key, shape))),
        np.geomspace(1e-3, 1e3, 4_001),
    ),
}
SIZES = [(n, epsilon) for n in (2_000, 20_000) for epsilon in (0.5, 1.0, 3.0)]
SIZES.append((100_000, 1.0))


def study(name, num_samples, epsilon, num_repetitions):
    """Returns errors, standard errors, and those without privacy, (repetitions, k)."""
    if name in QUANTILE_LAWS:
        run = _of_quantiles(name, num_samples, epsilon)
        return record.repeated(run, num_repetitions, AT_ONCE)
    # One by one, programs are those of the solver, which all laws share.
    run = _of_coefficients(name, num_samples, epsilon)
    keys = jax.random.split(jax.random.key(0), num_repetitions)
    runs = [jax.tree.map(np.asarray, run(key)) for key in keys]
    return jax.tree.map(lambda *x: np.stack(x), *runs)


def _of_quantiles(name, num_samples, epsilon):
    law, draw, edges = QUANTILE_LAWS[name]
    truth = law.ppf(QUANTILES)
    ranks = np.sqrt(np.multiply(QUANTILES, np.subtract(1, QUANTILES)) / num_samples)
    alone = jnp.asarray(ranks / law.pdf(truth), "float32")

    def run(key):
        data_key, *keys = jax.random.split(key, 1 + len(QUANTILES))
        samples = draw(data_key, (num_samples,))
        one = partial(dp_quantile, samples, epsilon=epsilon, edges=edges)
        pairs = zip(keys, QUANTILES, strict=True)
        solutions = [one(key=key, quantile=quantile) for key, quantile in pairs]
        params = jnp.stack([x.params for x in solutions])
        errors = jnp.stack([x.standard_errors for x in solutions])
        return params - jnp.asarray(truth, "float32"), errors, alone

    return run


def _of_coefficients(name, num_samples, epsilon):
    place = name, num_samples, epsilon
    loss, truth, draw = USUAL[place]() if place in USUAL else LAWS[name]
    draw = jax.jit(draw, static_argnums=1)
    best = jax.jit(partial(best_fit, loss, truth), static_argnums=3)

    def run(key):
        data_key, key = jax.random.split(key)
        features, targets, offsets = draw(data_key, num_samples)
        given = {"epsilon": epsilon, "delta": num_samples**-1.1, "intercept": -1}
        if name == "claims":
            given["offsets"] = offsets
        data, size = (features, targets), 1
        if "persons" in name:
            size = PERSON
            persons = jnp.arange(num_samples) // PERSON
            sizes = {"num_users": num_samples // PERSON, "records_per_user": PERSON}
            data = by_user(data, persons, **sizes)
        solution = dp_linear_model(loss, data, key=key, intervals=True, **given)
        _, alone = best(features, targets, offsets, size)
        is_asymptotic = solution.stats["is_asymptotic"]
        return solution.params - truth, solution.standard_errors, alone, is_asymptotic

    return run


def best_fit(loss: LinearLoss, params, features, targets, offsets, size=1):
    """Returns the best fit without privacy, and standard errors by the sandwich.

    Scores are added for each `size` records, which depend on each other.
    """
    targets = loss.targets_of(targets)

    def linearized(params):
        predictions = features @ params + offsets
        curvatures = loss.curvature(predictions, targets)
        inverse = jnp.linalg.inv((features * curvatures[:, None]).T @ features)
        return inverse, loss.derivative(predictions, targets)

    for _ in range(NUM_NEWTON):
        inverse, slopes = linearized(params)
        params = params - inverse @ (features.T @ slopes)
    inverse, slopes = linearized(params)
    scores = features * slopes[:, None]
    scores = jnp.sum(scores.reshape(-1, size, scores.shape[1]), axis=1)
    return params, jnp.sqrt(jnp.diag(inverse @ (scores.T @ scores) @ inverse))


def study_bands(name, num_samples, epsilon, num_repetitions):
    """Returns errors and standard errors of curves on `GRID`, (repetitions, points)."""
    _, law, loss, number = name.split(", ")
    d = int(number)
    root = np.linalg.cholesky(0.5 ** np.abs(np.subtract.outer(range(d), range(d))))

    def draw(key, num_samples):
        """Returns columns and predictions, which are no sums of hat functions."""
        columns = CURVES[law](key, (num_samples, d)) @ jnp.asarray(root.T, "float32")
        odd, even = columns[:, ::2], columns[:, 1::2]
        odd = jnp.where(odd > 0, jnp.sin(1.5 * odd), 0.5 * odd)
        even = jnp.minimum(even**2, 6) / 3
        return columns, jnp.sum(odd, axis=1) + jnp.sum(even - 0.33, axis=1)

    def solve(key):
        data_key, noise_key, key = jax.random.split(key, 3)
        columns, targets = draw(data_key, num_samples)
        if loss == "squared":
            targets += jax.random.t(noise_key, 4.0, targets.shape)
        else:
            targets = jnp.sign(targets + jax.random.logistic(noise_key, targets.shape))
        data = jnp.append(columns, jnp.ones((num_samples, 1)), axis=1), targets
        given = {"epsilon": epsilon, "delta": 0.1 / num_samples, "intervals": True}
        given |= {"smooth": range(d), "intercept": d}
        return dp_additive_model(loss, data, key=key, **given)

    def on_grid(key):
        solution = solve(key)
        pair = solution.standard_errors, solution.correlations
        curves = [solution.params.curve(j, GRID) for j in range(d)]
        errors = [solution.params.errors(*pair, j, GRID) for j in range(d)]
        return jnp.concatenate(curves), jnp.concatenate(errors)

    knots = jax.eval_shape(solve, jax.random.key(0)).params.knots
    truth = _best_curves(*draw(jax.random.key(999), 1_000_000), loss, knots)
    curves, errors = record.repeated(on_grid, num_repetitions, 4)
    return curves - truth, errors


def _best_curves(columns, predictions, loss, knots):
    """Returns the best sum of hat functions of many records, at `GRID`, by Newton."""
    inner = knots.index(0.0)
    peaks = np.delete(np.eye(len(knots)), inner, 0)
    rows = [np.stack([np.interp(x, knots, y) for y in peaks], 1) for x in columns.T]
    rows = np.hstack([np.ones((len(columns), 1)), *rows])
    means = np.asarray(predictions, np.float64)
    is_squared, weights = loss == "squared", np.zeros(rows.shape[1])
    means = means if is_squared else special.expit(means)
    for _ in range(1 if is_squared else 8):
        fitted = rows @ weights
        fitted = fitted if is_squared else special.expit(fitted)
        slopes = np.ones_like(fitted) if is_squared else fitted * (1 - fitted)
        gradient = rows.T @ (means - fitted)
        weights += np.linalg.solve((rows.T * slopes) @ rows, gradient)
    heights = np.insert(weights[1:].reshape(-1, len(peaks)), inner, 0.0, axis=1)
    return np.concatenate([np.interp(GRID, knots, curve) for curve in heights])


def misses(errors, standard_errors):
    """Returns, in two rows, how many finite intervals miss, and how many there are."""
    is_finite = np.isfinite(standard_errors)
    is_missed = np.abs(errors) > 1.959964 * standard_errors
    return np.stack([np.sum(is_finite & is_missed, 0), np.sum(is_finite, 0)])


def are_too_many(missed, total):
    """Whether some coefficient is missed more often than 7 percent explain."""
    chances = stats.binom.sf(missed - 1, total, 0.07)
    return np.min(chances) < 0.01 / len(missed)


def run(out: Path = PATH) -> None:
    """Runs every law and size that the record lacks, small ones first."""
    sizes = [*product(SIZES, QUANTILE_LAWS), *product(SIZES, LAWS)]
    record.fill(out, [*USUAL, *((name, *size) for size, name in sizes)], _cell)
    record.fill(out, BANDS, _bands)
    record.fill(out, populations.places(), partial(populations.cell, RUNS, AT_ONCE))


def _cell(place: record.Place) -> record.Found:
    name, num_samples, epsilon = place
    errors, found, alone, *flags = study(name, num_samples, epsilon, RUNS)
    missed, total = misses(errors, found)
    with warnings.catch_warnings(action="ignore"):  # where no interval is finite
        widths = np.nanmedian(np.where(np.isfinite(found), found / alone, np.nan), 0)
    row = {"repetitions": len(errors)}
    row |= {"missed": missed.tolist(), "finite": total.tolist()}
    row["widths"] = [None if math.isnan(x) else round(float(x), 3) for x in widths]
    for is_asymptotic in flags:  # missed, finite
        of_them = misses(errors[is_asymptotic], found[is_asymptotic])
        row["asymptotic"] = np.sum(of_them, axis=1).tolist()
    print(*place, row, flush=True)
    return {place: row}, {}


def _bands(place: record.Place) -> record.Found:
    missed, total = misses(*study_bands(*place, RUNS))
    row = {"repetitions": RUNS, "missed": missed.tolist(), "finite": total.tolist()}
    print(*place, row, flush=True)
    return {place: row}, {}


def write(output: Path | None = None) -> list[Path]:
    """Writes COVERAGE.md from the record, and returns its path."""
    rows = record.read(PATH).rows
    parts = [_quantiles(rows), populations.table(rows), _usual(rows), _of_bands(rows)]
    parts += [_table(rows, *size) for size in SIZES]
    return [page.write("COVERAGE.md", {"tables": filter(None, parts)}, output)]


def _quantiles(rows) -> str:
    lines = []
    for name, size in product(QUANTILE_LAWS, SIZES):
        if (row := rows.get((name, *size))) is not None:
            missed, total = np.array(row["missed"]), np.array(row["finite"])
            counts = zip(missed, total, strict=True)
            held = [1 - float(a / b) if b >= AT_ONCE else None for a, b in counts]
            refused = 1 - float(np.sum(total)) / (row["repetitions"] * len(total))
            law = name.removeprefix("quantiles, ")
            lines.append([law, *size, row["repetitions"], *held])
            lines[-1] += [*row["widths"], refused]
    names = [f"{what}, {q:g}" for what in ("held", "width") for q in QUANTILES]
    header = ["law", "n", "epsilon", "runs", *names, "refused"]
    return f"## Quantiles\n\n{page.table(header, lines)}" if lines else ""


def _usual(rows) -> str:
    lines = []
    for place in USUAL:
        if (row := rows.get(place)) is None:
            continue
        missed, total = np.array(row["missed"]), np.array(row["finite"])
        sums, sure = [np.sum(missed), np.sum(total)], row["asymptotic"]
        other = np.subtract(sums, sure)
        held = [1 - float(a / b) if b >= 40 else None for a, b in (sure, other)]
        widths = [x for x in row["widths"] if x is not None]
        share = float(sums[1]) / (row["repetitions"] * len(total))
        middle = float(np.median(widths)) if widths else None
        lines.append([*place, row["repetitions"], share, middle, *held])
        lines[-1].append(1 - float(np.max(missed / total)) if all(total) else None)
    header = ["columns, outcome", "n", "epsilon", "runs", "finite", "width"]
    header += ["held, asymptotic", "held, conservative", "worst coefficient"]
    return f"## Usual laws\n\n{page.table(header, lines)}" if lines else ""


def _of_bands(rows) -> str:
    lines = []
    for place in filter(rows.get, BANDS):
        row, (name, *size) = rows[place], place
        missed, total = np.array(row["missed"]), np.array(row["finite"])
        held = [1 - float(np.sum(missed) / np.sum(total)), 1 - np.max(missed / total)]
        finite = float(np.sum(total)) / (row["repetitions"] * len(total))
        law = name.removeprefix("bands, ")
        lines.append([law, *size, row["repetitions"], finite, *map(float, held)])
    header = ["columns, loss, curves", "n", "epsilon", "runs", "finite", "held"]
    text = page.table([*header, "worst point"], lines)
    return f"## Bands of curves\n\n{text}" if lines else ""


def _table(rows, num_samples, epsilon) -> str:
    lines = []
    for name in LAWS:
        if (row := rows.get((name, num_samples, epsilon))) is None:
            continue
        missed, total = np.array(row["missed"]), np.array(row["finite"])
        cells: list[float | None] = [None] * 5
        if np.all(total >= AT_ONCE):
            held, widths = (1 - missed / total).tolist(), row["widths"]
            cells = [1 - float(np.sum(missed) / np.sum(total)), min(held[:-1])]
            cells += [held[-1], float(np.median(widths)), widths[-1]]
        refused = 1 - float(np.sum(total)) / (row["repetitions"] * len(total))
        lines.append([name, row["repetitions"], *cells, refused])
    header = ["law", "runs", "held", "worst slope", "intercept", "width"]
    header += ["of the intercept", "refused"]
    title = f"## n = {num_samples:,}, epsilon {epsilon:g}\n\n"
    return title + page.table(header, lines) if lines else ""
