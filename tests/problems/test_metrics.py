"""The metrics: equal to scikit-learn's, and of parts that add up."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable
from math import exp, isnan, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as known
from torch import Tensor

from offbeat.core.errors import SettingError
from offbeat.core.metric import Metric, all_metrics
from offbeat.problems.metrics import Accuracy, Score, TopK, Whole
from offbeat.problems.scoring import NAMED, scores

DRAW = torch.Generator().manual_seed(0)
N = 500


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=DRAW)


LABELS = torch.randint(6, (N,), generator=DRAW)
SCORES = normal(N, 6) + 1.5 * torch.nn.functional.one_hot(LABELS, 6)
TWO = torch.randint(2, (N,), generator=DRAW)
PAIR = normal(N, 2) + torch.nn.functional.one_hot(TWO, 2)
ONE = normal(N) + 2.0 * TWO - 1
MANY = (normal(N, 4) > 0.5).float()
MARKS = normal(N, 4) + 2.0 * MANY - 1
NUMBERS = 100 + 3 * normal(N)
GUESSES = NUMBERS + normal(N)
VECTORS = normal(N, 3)
NEAR = VECTORS + 0.5 * normal(N, 3)
TOKENS = torch.randint(7, (N, 5), generator=DRAW)
TEXTS = normal(N, 5, 7)


def softmax(output: Tensor) -> Any:
    return output.double().softmax(1).numpy()


def macro(output: Tensor, target: Tensor, curve: Callable[..., float]) -> float:
    share = softmax(output)
    return float(np.mean([curve(target.numpy() == c, share[:, c]) for c in range(share.shape[1])]))


def calibration(confidence: Any, right: Any) -> float:
    at = np.clip(np.ceil(confidence * 15) - 1, 0, 14)
    gaps = [abs(right[at == b].mean() - confidence[at == b].mean()) * (at == b).mean() for b in np.unique(at)]
    return float(sum(gaps))


EXACT: list[tuple[str, Tensor, Tensor, float]] = [
    ("accuracy", SCORES, LABELS, known.accuracy_score(LABELS, SCORES.argmax(1))),
    ("accuracy", ONE, TWO.float(), known.accuracy_score(TWO, ONE >= 0)),
    ("accuracy", ONE.unsqueeze(1), TWO, known.accuracy_score(TWO, ONE >= 0)),
    ("accuracy", TEXTS, TOKENS, known.accuracy_score(TOKENS.flatten(), TEXTS.argmax(2).flatten())),
    ("accuracy", TEXTS.movedim(2, 1), TOKENS, known.accuracy_score(TOKENS.flatten(), TEXTS.argmax(2).flatten())),
    ("top5", SCORES, LABELS, known.top_k_accuracy_score(LABELS, SCORES, k=5)),
    ("hamming", MARKS, MANY, known.hamming_loss(MANY, MARKS >= 0)),
    ("f1", SCORES, LABELS, known.f1_score(LABELS, SCORES.argmax(1), average="macro")),
    ("f1", MARKS, MANY, known.f1_score(MANY, MARKS >= 0, average="macro")),
    ("f1", ONE, TWO, known.f1_score(TWO, ONE >= 0)),
    ("dice", MARKS.view(N, 2, 2), MANY.view(N, 2, 2), known.f1_score(MANY.flatten(), MARKS.flatten() >= 0)),
    ("dice", SCORES, LABELS, known.f1_score(LABELS, SCORES.argmax(1), average="macro", labels=range(1, 6))),
    ("ece", SCORES, LABELS, calibration(softmax(SCORES).max(1), (SCORES.argmax(1) == LABELS).numpy())),
    ("mse", GUESSES, NUMBERS, known.mean_squared_error(NUMBERS.double(), GUESSES.double())),
    ("mse", GUESSES.unsqueeze(1), NUMBERS, known.mean_squared_error(NUMBERS.double(), GUESSES.double())),
    ("mse", NEAR, VECTORS, known.mean_squared_error(VECTORS.double(), NEAR.double())),
    ("rmse", GUESSES, NUMBERS, known.root_mean_squared_error(NUMBERS.double(), GUESSES.double())),
    ("mae", NEAR, VECTORS, known.mean_absolute_error(VECTORS.double(), NEAR.double())),
    ("r2", GUESSES, NUMBERS, known.r2_score(NUMBERS.double(), GUESSES.double())),
    ("r2", NEAR, VECTORS, known.r2_score(VECTORS.double(), NEAR.double())),
    (
        "perplexity",
        TEXTS,
        TOKENS,
        exp(known.log_loss(TOKENS.flatten(), TEXTS.flatten(0, 1).double().softmax(1), labels=range(7))),
    ),
]
BINNED: list[tuple[str, Tensor, Tensor, float]] = [
    ("auroc", ONE, TWO, known.roc_auc_score(TWO, ONE)),
    ("auroc", 30 * ONE, TWO, known.roc_auc_score(TWO, ONE)),  # so confident that even bins would be all but two empty
    ("auroc", 0.02 * ONE, TWO, known.roc_auc_score(TWO, ONE)),
    ("auroc", PAIR, TWO, known.roc_auc_score(TWO, softmax(PAIR)[:, 1])),
    ("auroc", SCORES, LABELS, macro(SCORES, LABELS, known.roc_auc_score)),
    ("auroc", MARKS, MANY, known.roc_auc_score(MANY, MARKS, average="macro")),
    ("auprc", ONE, TWO, known.average_precision_score(TWO, ONE)),
    ("auprc", PAIR, TWO, known.average_precision_score(TWO, softmax(PAIR)[:, 1])),
    ("auprc", SCORES, LABELS, macro(SCORES, LABELS, known.average_precision_score)),
    ("auprc", MARKS, MANY, known.average_precision_score(MANY, MARKS, average="macro")),
]


def value(score: Score, output: Tensor, target: Tensor) -> float:
    return score.value(score.state(output, target))


@pytest.mark.parametrize(("name", "output", "target", "expected"), EXACT, ids=[case[0] for case in EXACT])
def test_it_is_scikit_learns(name: str, output: Tensor, target: Tensor, expected: float) -> None:
    assert value(NAMED[name](), output, target) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("name", "output", "target", "expected"), BINNED, ids=[case[0] for case in BINNED])
def test_a_curve_in_bins_is_within_a_hundredth(name: str, output: Tensor, target: Tensor, expected: float) -> None:
    assert value(NAMED[name](), output, target) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(
    ("name", "output", "target", "expected"), [*EXACT, *BINNED], ids=[case[0] for case in [*EXACT, *BINNED]]
)
def test_parts_add_up(name: str, output: Tensor, target: Tensor, expected: float) -> None:
    score = NAMED[name]()
    parts = [score.state(output[some], target[some]) for some in torch.split(torch.randperm(N, generator=DRAW), 77)]
    assert all(part.dtype == torch.float64 and part.dim() == 1 for part in parts)
    assert score.size in (None, len(parts[0]))
    assert score.value(sum(parts[1:], parts[0])) == pytest.approx(value(score, output, target), abs=1e-9)


@pytest.mark.parametrize("name", NAMED)
def test_it_says_what_it_is(name: str) -> None:
    score = NAMED[name]()
    assert (score.name, isinstance(score, Metric)) == (name, True)
    better = {"accuracy", "top5", "f1", "auroc", "auprc", "dice", "r2"}
    assert score.higher == (name in better)
    assert score.share == (name in better - {"r2"} | {"ece", "hamming"})
    assert all_metrics([score])[0] == Metric(name, score.higher, score.share)
    assert pickle.loads(pickle.dumps(score)) == score == copy.deepcopy(score)


def test_places_that_do_not_count_are_left_out() -> None:
    some = TOKENS.clone()
    some[:, 2:] = -100
    for name in ("accuracy", "top5", "f1", "perplexity"):
        whole, part = value(NAMED[name](), TEXTS, some), value(NAMED[name](), TEXTS[:, :2], TOKENS[:, :2])
        assert whole == pytest.approx(part)


@pytest.mark.parametrize("name", ["accuracy", "hamming", "f1", "auroc", "auprc", "ece", "dice"])
@pytest.mark.parametrize("kind", [torch.int64, torch.float32])
def test_labels_that_are_unknown_do_not_count(name: str, kind: torch.dtype) -> None:
    outputs, labels = torch.randn(60, 3, generator=DRAW), (torch.rand(60, 3, generator=DRAW) < 0.4).to(kind)
    gaps = labels.clone()
    gaps[:20], gaps[20:40, 1], gaps[:, 2] = -100, -100, -100
    score = NAMED[name]()
    known = [
        score.state(outputs[some, label], labels[some, label])
        for some, label in ((slice(20, 60), 0), (slice(40, 60), 1))
    ]
    apart = [score.value(each) for each in known]
    together = score.value(sum(known[1:], known[0]))
    expected = sum(apart) / 2 if name in ("f1", "auroc", "auprc") else together
    assert value(score, outputs, gaps) == pytest.approx(expected)


def test_without_samples_there_is_no_value() -> None:
    for name, output, target, _ in [*EXACT, *BINNED]:
        assert isnan(value(NAMED[name](), output[:0], target[:0]))


def test_outputs_that_are_not_finite_do_not_pass_for_numbers() -> None:
    broken = ONE.clone()
    broken[3] = float("nan")
    assert all(isnan(value(NAMED[name](), broken, TWO)) for name in ("auroc", "auprc", "ece", "mse", "r2"))


def test_a_label_that_never_or_always_occurs_has_no_curve() -> None:
    assert isnan(value(NAMED["auroc"](), ONE, torch.zeros(N)))
    half = MANY.clone()
    half[:, 0] = 0.0
    expected = known.roc_auc_score(MANY[:, 1:], MARKS[:, 1:], average="macro")
    assert value(NAMED["auroc"](), MARKS, half) == pytest.approx(expected, abs=0.01)


def test_the_usual_metric_follows_from_the_loss() -> None:
    assert [score.name for score in scores(None, "cross-entropy")] == ["accuracy"]
    assert scores(None, "mse") == ()


def test_metrics_are_given_by_name_as_objects_and_under_names_of_their_own() -> None:
    assert [score.name for score in scores(["rmse", TopK(3), Accuracy], "mse")] == ["rmse", "top3", "accuracy"]
    assert [score.name for score in scores({"right": "accuracy"}, "cross-entropy")] == ["right"]
    assert scores(["offbeat.problems.metrics:RMSE"], "mse")[0].name == "rmse"


def test_metrics_of_the_next_token_compare_each_place_with_it() -> None:
    shifted, perplexity = scores(["accuracy", "perplexity"], "next-token")
    expected = value(Accuracy(), TEXTS[:, :-1], TOKENS[:, 1:])
    assert (value(shifted, TEXTS, TOKENS), shifted.name, shifted.share) == (expected, "accuracy", True)
    assert perplexity.of_loss  # which has been shifted


def test_a_function_gets_all_outputs_and_says_which_way_is_better() -> None:
    def worst(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).abs().max()

    with pytest.raises(SettingError, match=r"worst does not say which direction is better; write worst\.higher = True"):
        scores([worst], "mse")
    worst.higher = False  # type: ignore[attr-defined]
    (score,) = scores([worst], "mse")
    assert isinstance(score, Whole)
    assert (score.name, score.higher, score.whole) == ("worst", False, True)
    assert score.of(GUESSES, NUMBERS) == float((GUESSES - NUMBERS).abs().max())
    with pytest.raises(SettingError, match="worst needs the outputs of all samples"):
        score.state(GUESSES, NUMBERS)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (["rsme"], "there is no 'rsme'; did you mean 'rmse'"),
        (["rmse", "rmse"], "two are called 'rmse'"),
        ({"loss": "mse"}, "'loss' is what something else is called"),
        (["zzz"], "there is no 'zzz'; known: accuracy, .*, or your own package.module:name"),
        ([3], "3 is none"),
        ([dict], "dict is not derived from offbeat.problems.metrics.Score"),
        (["perplexity"], "perplexity is of tokens, and the loss is mse"),
        (["nowhere:metric"], "no module 'nowhere'"),
    ],
)
def test_what_is_no_metric_is_refused(given: Any, error: str) -> None:
    with pytest.raises(SettingError, match=f"^metrics: .*{error}|^metrics: {error}"):
        scores(given, "mse")


# torchmetrics


@pytest.fixture
def torchmetrics() -> Any:
    return pytest.importorskip("torchmetrics")


def test_a_torchmetric_whose_states_are_sums_is_taken(torchmetrics: Any) -> None:
    for given, ours, output, target in (
        (torchmetrics.Accuracy(task="multiclass", num_classes=6, average="micro"), "accuracy", SCORES, LABELS),
        (torchmetrics.F1Score(task="multiclass", num_classes=6, average="macro"), "f1", SCORES, LABELS),
        (torchmetrics.MeanSquaredError(), "mse", GUESSES, NUMBERS),
        (torchmetrics.R2Score(), "r2", GUESSES.unsqueeze(1), NUMBERS),
        (torchmetrics.text.Perplexity(), "perplexity", TEXTS, TOKENS),
        (torchmetrics.F1Score(task="multilabel", num_labels=4), "f1", MARKS, MANY),
    ):
        (score,) = scores({"theirs": given}, "model")
        assert score.name == "theirs"
        assert score.higher == NAMED[ours]().higher
        parts = [score.state(o, t) for o, t in zip(output.split(99), target.split(99), strict=True)]
        assert all(len(part) == score.size for part in parts)
        assert score.value(sum(parts[1:], parts[0])) == pytest.approx(value(NAMED[ours](), output, target), abs=1e-3)


@pytest.mark.parametrize("output", [ONE, 30 * ONE, PAIR], ids=["scores", "confident", "two classes"])
def test_torchmetrics_are_given_probabilities_whatever_the_batch(torchmetrics: Any, output: Tensor) -> None:
    (score,) = scores([torchmetrics.AUROC(task="binary", thresholds=200)], "bce")
    parts = [score.state(o, t) for o, t in zip(output.split(1), TWO.split(1), strict=True)]
    assert (score.name, score.higher, score.share) == ("auroc", True, True)
    assert score.value(sum(parts[1:], parts[0])) == pytest.approx(value(score, output, TWO))
    share = output.double().softmax(1)[:, 1] if output.dim() == 2 else output.double().sigmoid()
    coarse = 0.07 if output.abs().max() > 30 else 0.01  # its thresholds are evenly spaced
    assert score.value(sum(parts[1:], parts[0])) == pytest.approx(known.roc_auc_score(TWO, share), abs=coarse)


def test_a_torchmetric_that_keeps_all_outputs_is_refused_with_the_remedy(torchmetrics: Any) -> None:
    with pytest.raises(SettingError, match=r"the state 'preds' of auroc is a list of all outputs.*thresholds=200"):
        scores([torchmetrics.AUROC(task="binary")], "bce")
    with pytest.raises(SettingError, match="of pearsoncorrcoef is not a sum"):
        scores([torchmetrics.PearsonCorrCoef()], "mse")
    with pytest.raises(SettingError, match="does not say which direction is better"):
        scores([torchmetrics.ConfusionMatrix(task="binary")], "bce")


def test_torchmetrics_is_not_imported_before_it_is_used() -> None:
    scores(["accuracy"], "cross-entropy")
    assert "torchmetrics" not in sys.modules or "offbeat.problems.torchmetric" in sys.modules


def test_a_root_of_the_mean_is_not_the_mean_of_roots() -> None:
    state = NAMED["rmse"]().state(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 3.0]))
    assert NAMED["rmse"]().value(state) == pytest.approx(sqrt(5))
