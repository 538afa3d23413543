"""From the strings and tables of a settings file to the parts of a problem: splits, and what there is to name."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from typing import Any

from offbeat.core.errors import SettingError, unknown
from offbeat.data.splits import IID, Classes, Dirichlet, NearlyIID, Owners, Split
from offbeat.experiment.parse import build, plain

# name -> (the split, the field that the name's own value goes to)
_SPLITS: Mapping[str, tuple[Callable[..., Split], str | None]] = {
    "dirichlet": (Dirichlet, "alpha"),
    "classes": (Classes, "per_client"),
    "iid": (IID, None),
    "nearly-iid": (NearlyIID, None),
    "owners": (Owners, None),
}

SPLITS = {
    "dirichlet": "class proportions from a Dirichlet distribution: { dirichlet = 0.1 }; with per_client = 300, "
    "equal-sized clients",
    "classes": "samples of this many classes on each client: { classes = 5 }; with even = false, each draws its own; "
    "with equal = false, it has more of some",
    "iid": "equal parts of the shuffled samples",
    "nearly-iid": "the same class counts on all clients but the last, which has the rest",
    "owners": "one natural owner per client (shakespeare: a role), those with the most samples first",
}

DATA = {
    "digits": "1,797 handwritten digits of 8 × 8 pixels; comes with scikit-learn",
    "mnist": "70,000 handwritten digits of 28 × 28 pixels",
    "fashion-mnist": "70,000 articles of clothing of 28 × 28 pixels",
    "cifar10": "60,000 colour photographs of 32 × 32 pixels in 10 classes",
    "shakespeare": "the next character after 80; every role of the plays is an owner",
}

MODELS = {
    "softmax": "softmax regression, one linear layer that starts at zero; options bias, spread",
    "mlp": "fully connected layers of 200 and 100; option hidden = [200, 100]",
    "lenet5": "LeNet-5: convolutions of 6 and 16 channels, full layers of 120 and 84",
    "cnn": "convolutions of 32 and 64 channels, a full layer of 512 (DeFedAvg's)",
    "cifar-cnn": "convolutions of 64 and 64 channels, full layers of 384 and 192 (FedAST's)",
    "lstm": "two LSTM layers of 256 on embedded characters; options embedding, hidden, layers",
    "resnet18-gn": "ResNet-18 with group normalisation; option groups",
    "package.module:factory": "your own: any callable that gives a torch.nn.Module",
}


def split_from(table: Any, where: str) -> Split:
    """A split from { dirichlet = 0.1, per_client = 300 }, { classes = 5 }, "iid", { iid = true } and the like."""
    if isinstance(table, str):
        if _SPLITS.get(table, (None, None))[1]:
            raise SettingError(f'{where} = "{table}": it takes a number, as in {{ {table} = 1 }}')
        table = {table: True}
    if not isinstance(table, Mapping) or not table:
        raise SettingError(f'{where} = {table!r}: expected a split, such as "iid" or {{ dirichlet = 0.1 }}')
    names = [key for key in table if key in _SPLITS]
    if not names:
        raise unknown(f"split in {where}:", next(iter(table)), _SPLITS)
    if len(names) > 1:
        raise SettingError(f"{where} has {' and '.join(names)}; it takes one of them")
    name, settings = names[0], {key: value for key, value in table.items() if key not in names}
    kind, own = _SPLITS[name]
    if own in settings:
        raise SettingError(f"{where}.{own}: write it as {name} = {settings[own]!r}")
    if own is None and table[name] is not True:
        raise SettingError(f'{where}.{name} = {table[name]!r}: write "{name}" or {{ {name} = true }}')
    if own is not None:
        settings[own] = plain(table[name], typing.get_type_hints(kind)[own], f"{where}.{name}")
    return build(kind, settings, where)
