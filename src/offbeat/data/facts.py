"""What is known of each set before it is read: its task, how many samples and natural clients it has, its licence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Facts:
    """What a set is, in a line and in numbers.

    samples: to train on and to test on; None: it depends on the files.   owners: natural clients; 0: there are none;
    None: it depends on the files.   licence: of the data, "not stated" where the publisher does not say.
    """

    line: str
    task: str
    samples: int | None
    owners: int | None
    licence: str


FACTS: Mapping[str, Facts] = {
    "digits": Facts(
        "1,797 handwritten digits of 8 × 8 pixels; comes with scikit-learn", "10 classes", 1_797, 0, "CC BY 4.0"
    ),
    "diabetes": Facts(
        "progression of diabetes in 442 patients of 10 age groups; comes with scikit-learn",
        "regression", 442, 10, "not stated",
    ),
    "breast-cancer": Facts(
        "569 tumours, malignant or benign, by 30 features; comes with scikit-learn", "2 classes", 569, 0, "CC BY 4.0"
    ),
    "randhie": Facts(
        "whether a person sees a doctor in a year, by health and insurance plan; 70 groups of people; included",
        "2 classes", 20_186, 70, "public domain",
    ),
    "grunfeld": Facts(
        "investment of 11 firms in 20 years, by their value and capital; included", "regression", 220, 11,
        "public domain",
    ),
    "employment": Facts(
        "next month's change of employment in 15 sectors, after 12 months; included", "forecast", 1_605, 15,
        "public domain",
    ),
    "mnist": Facts("70,000 handwritten digits of 28 × 28 pixels", "10 classes", 70_000, 0, "CC BY-SA 3.0"),
    "fashion-mnist": Facts("70,000 articles of clothing of 28 × 28 pixels", "10 classes", 70_000, 0, "MIT"),
    "cifar10": Facts(
        "60,000 colour photographs of 32 × 32 pixels in 10 classes", "10 classes", 60_000, 0, "not stated"
    ),
    "shakespeare": Facts(
        "predict the next character after 80; every role of the plays is an owner", "text", None, None,
        "public domain",
    ),
}  # fmt: skip
