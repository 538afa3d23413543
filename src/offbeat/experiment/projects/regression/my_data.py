"""The samples. Replace `load` with a function that returns yours."""

import numpy as np
from sklearn.datasets import load_diabetes


def load():
    """Columns by name: ten measurements of 442 patients, the progression of their disease, and their age group.

    A pandas, polars or Arrow table works as well, and so does the path of a CSV or Parquet file.
    """
    patients = load_diabetes()
    age = patients.data[:, 0]
    return {
        "x": (patients.data * 21).astype("float32"),  # scikit-learn's columns have a standard deviation of 1 / 21
        "progression": ((patients.target - 152) / 77).astype("float32"),
        "group": np.searchsorted(np.quantile(age, np.linspace(0, 1, 11)[1:-1]), age),
    }
