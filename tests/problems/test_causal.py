"""A model that sees the token that it is to predict, and a target that is shifted twice, are refused."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import offbeat as ob
from offbeat.core.errors import DataError, ModelError
from offbeat.data.texts import windows

TEXTS = {"first": "to be or not to be, " * 20, "second": "that is the question. " * 30}
DATA = windows(TEXTS, window=8)
TOKENS = DATA.train["x"].long()


class Attends(nn.Module):
    """One layer of attention over tokens."""

    def __init__(self, shape: tuple[int, ...], classes: int, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.tokens, self.places = nn.Embedding(classes, 8), nn.Embedding(shape[0], 8)
        self.scores = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.tokens(x) + self.places.weight[: x.shape[1]]
        shares = h @ h.transpose(1, 2)
        if self.causal:
            shares = shares.masked_fill(torch.ones_like(shares[0]).triu(1).bool(), -torch.inf)
        return self.scores(shares.softmax(-1) @ h)


def attends(causal: bool) -> Callable[..., nn.Module]:
    return lambda shape: Attends(shape, DATA.classes or 0, causal)


@pytest.mark.parametrize(
    "problem", [{"data": DATA}, {"data": {"x": TOKENS}, "target": "x", "loss": "next-token"}], ids=["texts", "tokens"]
)
def test_a_model_without_a_mask_is_refused(problem: dict) -> None:
    ob.Supervised.split(clients=2, model=attends(True), **problem)
    with pytest.raises(ModelError, match=r"sees the tokens that it is to predict: .* mask its attention"):
        ob.Supervised.split(clients=2, model=attends(False), **problem)


def test_labels_at_the_tokens_places_may_be_told_from_both_sides() -> None:
    data = {"x": TOKENS, "y": TOKENS.flip(1)}
    ob.Supervised.split(data, 2, model=attends(False))


def test_a_target_that_is_shifted_already_is_not_shifted_again() -> None:
    with pytest.raises(DataError, match="'y' is already the token that follows in 'x', and the loss next-token"):
        ob.Supervised.split(DATA, 2, model="gpt", loss="next-token")
