"""The public contract: names, signatures, docstrings, and a light import."""

import inspect
import subprocess
import sys

import pytest

import dpjax
import dpjax.sklearn
from dpjax import (
    accounting,
    audit,
    batching,
    constraints,
    datasets,
    estimators,
    gradients,
    loading,
    losses,
    mechanisms,
    models,
    parties,
    solvers,
    transforms,
    tuning,
)
from tests.test_registry import described

PACKAGES = [
    dpjax,
    accounting,
    audit,
    batching,
    constraints,
    datasets,
    estimators,
    gradients,
    loading,
    losses,
    mechanisms,
    models,
    parties,
    dpjax.sklearn,
    solvers,
    transforms,
    tuning,
]

LINEAR_REGRESSOR = (
    "* epsilon= delta= feature_ranges= target_range= max_weight= random_state="
)
# Parameters, as in the registry, of what is no part of a layer.
SIGNATURES = {
    dpjax.per_sample_grad: "loss_fn * has_aux=",
    gradients.explain: "loss_fn params batch",
    gradients.streamed_grad: "loss_fn * microbatch_size=",
    gradients.by_user: "records user_ids * num_users records_per_user user_gradient=",
    gradients.UserRecords: "records is_record user_gradient=",
    dpjax.robust_grad: (
        "loss_fn estimator * microbatch_size= normalize_by= return_values= has_aux= "
        "axis_name= user_ids= num_users= records_per_user= user_gradient="
    ),
    dpjax.dp_sgd: (
        "learning_rate estimator * noise_multiplier key normalize_by= relation= "
        "axis_name= noise="
    ),
    estimators.AdaptiveThreshold: (
        "estimator lower upper quantile= learning_rate= share="
    ),
    estimators.AdaptiveThreshold.at: "self thresholds",
    estimators.AdaptiveThreshold.follow: "self released",
    estimators.Grouped.by_leaf: "estimator params",
    estimators.Scaled: "estimator scales",
    estimators.Scaled.restored: "self released",
    estimators.TrimmedMean.smooth_sensitivity: (
        "self samples smoothness * bound= axis_name="
    ),
    estimators.TrimmedMean.with_smooth_sensitivity: (
        "self samples smoothness * bound= axis_name="
    ),
    estimators.TrimmedMean.trim_count: "self num_samples",
    estimators.Estimator.__call__: (
        "self samples is_padding_example= * normalize_by= axis_name="
    ),
    estimators.Estimator.influence: "self sample",
    estimators.Estimator.sensitivity: "self num_samples num_coordinates relation=",
    estimators.SmoothedTruncation.for_moment: (
        "moment_bound * num_samples num_coordinates= num_steps= epsilon delta"
        " failure_prob= beta= calibration="
    ),
    estimators.Truncation.for_moment: (
        "moment_bound * moment_order= num_samples num_coordinates= num_steps= epsilon"
        " delta failure_prob= calibration="
    ),
    solvers.printed_epsilon: (
        "estimator * epsilon delta num_samples num_steps= batching="
    ),
    mechanisms.peeling: ("key vector * sparsity selection_scale release_stddev noise="),
    accounting.gaussian_stddev: "epsilon delta * sensitivity num_releases=",
    accounting.gaussian_epsilon: "stddev delta * sensitivity num_releases=",
    accounting.noise_multiplier: (
        "epsilon delta * num_steps sampling_prob= num_samples= batch_size= relation="
        " noise= other_multiplier="
    ),
    accounting.correlated_noise_multiplier: (
        "epsilon delta * strategy num_steps max_participations= min_separation="
        " sampling_prob= relation="
    ),
    accounting.correlated_noise_multiplier_to_epsilon: (
        "noise_multiplier delta * strategy num_steps max_participations="
        " min_separation= sampling_prob= relation="
    ),
    mechanisms.BandedToeplitz: "num_steps coefficients",
    mechanisms.BandedToeplitz.square_root: "num_steps num_bands",
    mechanisms.BandedToeplitz.optimal: "num_steps num_bands",
    mechanisms.BufferedToeplitz: "num_steps decays scales",
    mechanisms.BufferedToeplitz.optimal: (
        "num_steps * max_participations= min_separation="
    ),
    mechanisms.BinaryTree: "num_steps",
    mechanisms.Strategy.matrix: "self",
    mechanisms.Strategy.sensitivity: "self * max_participations= min_separation=",
    accounting.objective_noise: (
        "epsilon delta * num_samples regularization curvature_bound derivative_bound="
        " is_non_increasing= calibration= num_features="
    ),
    accounting.objective_epsilon: (
        "stddev delta * num_samples regularization curvature_bound derivative_bound="
        " is_non_increasing="
    ),
    accounting.discrete_gaussian_stddev: (
        "epsilon delta * sensitivity num_shares= num_coordinates num_releases="
    ),
    accounting.discrete_gaussian_epsilon: (
        "stddev delta * sensitivity num_shares= num_coordinates num_releases="
    ),
    accounting.rho_to_epsilon: "rho delta * conversion=",
    accounting.epsilon_to_rho: "epsilon delta * conversion=",
    accounting.smooth_noise_multiplier: "rho * smoothness sigma mechanism=",
    accounting.smooth_noise_rho: "multiplier * smoothness sigma mechanism=",
    accounting.calibrate_smooth_noise: (
        "rho * num_samples trim_count relative_spread= mechanism="
    ),
    accounting.PrivacyGuarantee.of: (
        "epsilon delta * dp_event relation= num_samples= unit="
    ),
    accounting.group_privacy: "guarantee group_size * num_groups= unit=",
    accounting.group_budget: "epsilon delta group_size",
    accounting.PrivacyFilter: "epsilon delta relation= order= spent=",
    accounting.PrivacyFilter.price: "self parts",
    accounting.PrivacyFilter.admits: "self parts",
    accounting.PrivacyFilter.spend: "self parts",
    accounting.PrivacyGuarantee: "epsilon delta relation dp_event description",
    audit.epsilon_lower_bound: (
        "release data neighbor * key delta= num_releases= confidence= is_gaussian="
        " statistic= batch_size= vectorize="
    ),
    audit.one_run: "release data neighbor * key statistic delta= confidence=",
    audit.cases: "",
    audit.Case: (
        "name release data neighbor privacy statistic= num_releases= is_gaussian="
        " vectorize="
    ),
    audit.Case.audit: "self * key num_releases=",
    transforms.average_params: "state",
    batching.Batching.init: "self key num_samples num_steps * epsilon= delta=",
    batching.Batching.draw: "self state data * axis_name=",
    batching.Batching.draw_within: "self state data * axis_name=",
    batching.Batching.participation: "self num_samples num_steps",
    loading.MemoryMapped: "files",
    loading.Parquet: "files columns",
    loading.load: "source sharding",
    loading.batches: "source state * sharding",
    solvers.Solution: "params privacy stats",
    solvers.Checkpoint: "folder every=",
    dpjax.PrivateTraining: (
        "loss_fn optimizer= * num_samples epsilon delta estimator= batching="
        " num_steps= noise= monitor= has_aux= microbatch_size= relation="
    ),
    dpjax.PrivateTraining.init: "self params key",
    dpjax.PrivateTraining.step: "self state data * axis_name=",
    solvers.Execution: ("* microbatch_size= callback= callback_every= checkpoint="),
    solvers.dp_multiparty_gradient_descent: (
        "loss_fn params data * secure_sum epsilon delta estimator learning_rate"
        " num_steps= projection_fn= averaging= execution="
    ),
    solvers.dp_multiparty_objective_perturbation: (
        "features labels * secure_sum epsilon delta regularization loss="
    ),
    parties.Grid: "step bound",
    parties.Grid.for_stddev: "stddev * bound",
    parties.JaxTransport: "",
    parties.SecureSum: (
        "transport * max_colluding= max_dropouts= identity= fingerprints= "
        "test_only_random_bytes="
    ),
    parties.fingerprint: "identity",
    parties.new_identity: "",
    parties.SecureSum.agree: "self settings num_records",
    parties.SecureSum.count_secret_shares: "num_parties max_colluding max_dropouts",
    parties.run_parties: "party_fn num_parties * timeout=",
    accounting.largest_smoothness: "epsilon delta * num_coordinates",
    accounting.smooth_gaussian_multiplier: (
        "epsilon delta * smoothness num_coordinates"
    ),
    accounting.smooth_gaussian_epsilon: (
        "noise_multiplier delta * smoothness num_coordinates"
    ),
    accounting.selection_epsilon: "epsilon delta * num_selections mechanism=",
    accounting.total_selection_epsilon: "epsilon delta * num_selections mechanism=",
    accounting.selection_event: "epsilon * num_selections= mechanism=",
    accounting.tuning_epsilon: "base delta * mean_trials distribution=",
    accounting.tuning_budget: "epsilon delta * mean_trials distribution=",
    tuning.dp_select: (
        "train_fn candidates * key epsilon delta score mean_trials distribution="
        " default= privacy= num_parallel= checkpoint="
    ),
    tuning.Score: "fn privacy records=",
    tuning.clipped_loss: "loss_fn data * limit epsilon delta records=",
    tuning.accuracy: "predict_fn data * epsilon delta records=",
    constraints.grid_net: "constraint num_coordinates * radius",
    constraints.halton_net: "box num_coordinates * num_candidates",
    losses.LinearLoss.__call__: "self params example",
    losses.LinearLoss.value: "self predictions targets",
    losses.LinearLoss.derivative: "self predictions targets",
    losses.LinearLoss.curvature: "self predictions targets",
    losses.LinearLoss.targets_of: "self targets",
    losses.LinearLoss.constant_prediction: "self mean",
    losses.LinearLoss.mean_of: "self predictions",
    losses.MarginLoss.derivative: "self predictions targets=",
    losses.named: "loss",
    datasets.Winsorized: "center= scale= limit=",
    dpjax.load_model: "path",
    models.model_file: "model",
    models.BoundedColumn: "column max",
    models.BoundedColumn.shares: "self cells",
    models.Model: (
        "* params columns target_name target link privacy target_unit= method= data="
        " versions= exposure="
    ),
    models.Model.predict: "self table",
    models.Model.read: "self table",
    models.Model.predict_columns: "self columns",
    models.Model.coefficients: "self",
    models.private_scores: (
        "scores targets * beside= loss loss_name scale key noise_multiplier"
    ),
    dpjax.sklearn.score_privately: (
        "model X y * epsilon= delta= baseline= scale= random_state="
    ),
    dpjax.sklearn.DPLinearRegression: LINEAR_REGRESSOR,
    dpjax.sklearn.DPPoissonRegressor: LINEAR_REGRESSOR,
    dpjax.sklearn.DPGammaRegressor: LINEAR_REGRESSOR,
    dpjax.sklearn.DPHuberRegressor: f"{LINEAR_REGRESSOR} threshold=",
    dpjax.sklearn.DPTweedieRegressor: f"{LINEAR_REGRESSOR} power=",
    dpjax.sklearn.DPLogisticRegression: (
        "* epsilon= delta= classes= feature_ranges= max_weight= random_state="
    ),
    dpjax.sklearn.DPMeanRegressor: (
        "* epsilon= delta= target_range= max_weight= random_state="
    ),
    dpjax.sklearn.DPLinearRegression.fit: "self X y sample_weight=",
    dpjax.sklearn.DPLogisticRegression.fit: "self X y sample_weight=",
    dpjax.sklearn.DPMeanRegressor.fit: "self X y sample_weight=",
    solvers.MarginLoss: (
        "derivative_fn derivative_bound curvature_bound is_non_increasing= value_fn="
    ),
    solvers.MarginLoss.logistic: "",
    solvers.MarginLoss.smoothed_hinge: "width=",
}


@pytest.mark.parametrize(
    "function", SIGNATURES, ids=lambda function: function.__qualname__
)
def test_signature(function):
    assert described(function) == SIGNATURES[function]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_names(package):
    assert len(package.__all__) == len(set(package.__all__))
    for name in package.__all__:
        assert hasattr(package, name)
        assert not name.startswith("_")


# Plain records, which the functions that make or take them explain, and aliases.
RECORDS = {
    "dpjax.batching.BatchState",
    "dpjax.models.Interval",
    "dpjax.models.Link",
    "dpjax.models.Measure",
    "dpjax.models.PrivateScores",
    "dpjax.accounting.Spending",
    "dpjax.audit.Audit",
    "dpjax.datasets.Dataset",
    "dpjax.ADD_OR_REMOVE_ONE",
    "dpjax.NeighboringRelation",
    "dpjax.REPLACE_ONE",
    "dpjax.estimators.Estimator",
    "dpjax.estimators.SampleStream",
    "dpjax.gradients.Explanation",
    "dpjax.gradients.LeafRoute",
    "dpjax.loading.Records",
    "dpjax.parties.JaxTransport",
    "dpjax.parties.PartyError",
    "dpjax.parties.Transport",
    "dpjax.solvers.Solution",
}


@pytest.mark.parametrize(
    ("package", "name"),
    [(package, name) for package in PACKAGES for name in package.__all__],
)
def test_docstrings_have_an_example_or_a_reference(package, name):
    value = getattr(package, name)
    if inspect.ismodule(value):
        assert value.__doc__
        return
    if f"{package.__name__}.{name}" in RECORDS:
        return
    documentation = inspect.getdoc(value) or ""
    assert "Example:" in documentation or "Reference:" in documentation


EXTRAS = {"typer", "rich", "matplotlib", "polars", "flax", "orbax", "pytest"}
EXTRAS |= {"cryptography", "grain", "jax_privacy", "pandas", "pyarrow", "sklearn"}


def loaded_by(script):
    """Names of the packages that a new process has imported at a script's end."""
    script += "\nimport sys\nprint(*{name.split('.')[0] for name in sys.modules})"
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(result.stdout.splitlines()[-1].split())


def test_import_needs_no_extras():
    loaded = loaded_by("import dpjax; [getattr(dpjax, name) for name in dpjax.__all__]")
    assert not loaded & EXTRAS
    assert {"jax", "optax", "dp_accounting"} <= loaded


@pytest.mark.parametrize("arguments", ["--help", "train --help", "train x --epsilon 0"])
def test_what_runs_nothing_does_not_wait_for_jax(arguments):
    loaded = loaded_by(f"""
import contextlib, sys
from dpjax.cli import main
sys.argv = ["dpjax", *{arguments.split()}]
with contextlib.suppress(SystemExit):
    main()
""")
    heavy = {"jax", "optax", "dp_accounting", "scipy", "matplotlib", "polars"}
    assert "typer" in loaded
    assert not loaded & heavy


def test_names_are_imported_when_they_are_read():
    assert set(dir(dpjax)) >= {*dpjax.__all__, "__version__"}
    with pytest.raises(AttributeError, match="'dpjax' has no attribute 'dp_adam'"):
        dpjax.dp_adam  # noqa: B018
