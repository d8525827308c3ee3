"""scikit-learn's own checks of an estimator: none is switched off by a tag."""

import inspect

import pytest
from sklearn.base import is_classifier
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import parametrize_with_checks

import dpjax.sklearn

pytestmark = pytest.mark.filterwarnings("ignore:.*is cloned again")

PUBLIC = [getattr(dpjax.sklearn, name) for name in dpjax.sklearn.__all__]
KINDS = [one for one in PUBLIC if inspect.isclass(one)]
# scikit-learn passes weights to all that takes them.
ESTIMATORS = [kind(max_weight=1) for kind in KINDS]
NO_VALUE_RAISES = "an error that depends on private values would release them"
OF_ALL = {
    "check_supervised_y_no_nan": NO_VALUE_RAISES,
    "check_dtype_object": NO_VALUE_RAISES,
    # Of scikit-learn 1.7 and later.
    "check_all_zero_sample_weights_error": NO_VALUE_RAISES,
    "check_sample_weight_equivalence_on_dense_data": (
        "a repeated record is another table: n is larger, and the noise another"
    ),
}
OF_REGRESSORS = {
    "check_regressors_train": (
        "200 records of ten features do not show enough at epsilon 1, nor does a mean"
    )
}
OF_CLASSIFIERS = {
    "check_classifiers_regression_target": NO_VALUE_RAISES,
    "check_classifiers_classes": "a label that ten records have may stay hidden",
    "check_classifiers_one_label": "as above, once in 50 fits",
}


def checks(estimators):
    """All of `parametrize_with_checks` but those that fail, for the reasons above."""
    mark = parametrize_with_checks(estimators).mark  # pytest deprecates its iterator
    names, cases = mark.args
    run_cases = [
        (estimator, check)
        for estimator, check in cases
        if check.func.__name__
        not in OF_ALL | (OF_CLASSIFIERS if is_classifier(estimator) else OF_REGRESSORS)
    ]
    return pytest.mark.parametrize(names, run_cases, **mark.kwargs)


@checks(ESTIMATORS)
def test_checks(estimator, check):
    check(estimator)


def test_no_tag_switches_a_check_off():
    for estimator in ESTIMATORS:
        tags = get_tags(estimator)
        kind = tags.classifier_tags or tags.regressor_tags
        assert not kind.poor_score
        assert not tags._skip_test
        assert not tags.no_validation
        assert not tags.non_deterministic
        assert tags.requires_fit
        assert tags.input_tags.allow_nan
        assert tags.target_tags.required
