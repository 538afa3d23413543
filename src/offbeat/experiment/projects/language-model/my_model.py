"""The model: any torch.nn.Module whose output is a score for each token that could be next."""

import torch
from torch import nn
from torch.nn import functional


class NextLetter(nn.Module):
    """Scores for the next letter, from the last three."""

    def __init__(self, letters=32, context=3, width=8, hidden=32):
        super().__init__()
        self.context = context
        self.embedding = nn.Embedding(letters, width)
        self.layers = nn.Sequential(nn.Linear(context * width, hidden), nn.ReLU(), nn.Linear(hidden, letters))

    def forward(self, tokens):  # [b, places]; the column of this name
        seen = functional.pad(self.embedding(tokens), (0, 0, self.context - 1, 0))
        last = [seen[:, at : at + tokens.shape[1]] for at in range(self.context)]
        return self.layers(torch.cat(last, dim=2))  # [b, places, letters]
