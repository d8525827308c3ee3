"""Adult (Census Income): does a person earn more than 50,000 dollars a year?"""

import numpy as np

from dpjax.datasets._dataset import Dataset, assemble, bundled, read_columns, signs
from dpjax.tables.columns._kinds import Categorical, Numeric

_FILE_COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status"),
    *("occupation", "relationship", "race", "sex", "capital-gain", "capital-loss"),
    *("hours-per-week", "native-country", "income"),
)
# The archive's file adult.names lists these categories; "?" is not among them.
_CATEGORIES = {
    "workclass": "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov "
    "State-gov Without-pay Never-worked",
    "education": "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc "
    "9th 7th-8th 12th Masters 1st-4th 10th Doctorate 5th-6th Preschool",
    "marital-status": "Married-civ-spouse Divorced Never-married Separated Widowed "
    "Married-spouse-absent Married-AF-spouse",
    "occupation": "Tech-support Craft-repair Other-service Sales Exec-managerial "
    "Prof-specialty Handlers-cleaners Machine-op-inspct Adm-clerical Farming-fishing "
    "Transport-moving Priv-house-serv Protective-serv Armed-Forces",
    "relationship": "Wife Own-child Husband Not-in-family Other-relative Unmarried",
    "race": "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
    "sex": "Female Male",
    "native-country": "United-States Cambodia England Puerto-Rico Canada Germany "
    "Outlying-US(Guam-USVI-etc) India Japan Greece South China Cuba Iran Honduras "
    "Philippines Italy Poland Jamaica Vietnam Mexico Portugal Ireland France "
    "Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary Guatemala Nicaragua "
    "Scotland Thailand Yugoslavia El-Salvador Trinadad&Tobago Peru Hong "
    "Holand-Netherlands",
}
# Centers and scales are round numbers from general knowledge: the middle of a working
# life, the code for "some college" (education-num runs from 1 to 16), the full-time
# week. Gains and losses, in dollars, are only divided, so that they keep their tails.
# The sampling weight fnlwgt is left out. Each category has a feature: no reference.
SCHEMA = {
    "age": Numeric(center=40, scale=15),
    "education-num": Numeric(center=10, scale=3),
    "hours-per-week": Numeric(center=40, scale=10),
    "capital-gain": Numeric(scale=10_000),
    "capital-loss": Numeric(scale=1_000),
    **{name: Categorical((*text.split(),)) for name, text in _CATEGORIES.items()},
}


def load() -> Dataset:
    """Returns the census data set Adult, with its official split.

    The target is +1 for an income above 50,000 dollars a year, else -1.

    Reference:
        B. Becker and R. Kohavi, Adult, UCI Machine Learning Repository (1996); 001,
        section 6.
    """
    train = bundled("adult.data.gz")
    # The test file opens with a line that is not a record: "|1x3 Cross validator".
    test = bundled("adult.test.gz").partition(b"\n")[2]
    parts = [read_columns(part, _FILE_COLUMNS) for part in (train, test)]
    columns = {
        name: np.concatenate([part[name] for part in parts]) for name in _FILE_COLUMNS
    }
    # The test file ends its labels with a full stop.
    is_rich = [label.startswith(">50K") for label in columns["income"]]
    return assemble(
        columns,
        SCHEMA,
        targets=signs(np.array(is_rich)),
        is_test=np.arange(len(is_rich)) >= len(parts[0]["income"]),
        name="adult",
        task="classification",
        target_unit="+1 above 50,000 dollars a year, else -1",
        licence="CC BY 4.0",
        source="UCI Machine Learning Repository, doi 10.24432/C5XW20",
    )
