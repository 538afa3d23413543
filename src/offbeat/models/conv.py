"""Small convolutional networks: convolutions, each followed by 2 × 2 pooling, then full layers."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d, pad

from offbeat.core.errors import SettingError, at_least, fraction, not_negative
from offbeat.models.dropout import dropped


class _Chain(nn.Module):
    """Convolutions, each followed by 2 × 2 max-pooling and ReLU, then full layers, with ReLU and dropout between them.

    convolutions: they become conv1, conv2, …   sizes: of what the full layers take and give.   dropout: its
    probability.   rectified: whether the outputs pass a ReLU, too.
    """

    def __init__(
        self, convolutions: Iterable[nn.Conv2d], sizes: Sequence[int], dropout: float = 0.0, rectified: bool = False
    ) -> None:
        super().__init__()
        self.borders: dict[str, int] = {}  # how many pixels each convolution adds at every side
        for number, layer in enumerate(convolutions, 1):
            self.add_module(f"conv{number}", layer)
            self.borders[f"conv{number}"] = int(layer.padding[0])
        self.full = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        self.drop = nn.Dropout(dropout) if dropout else None
        self.rectified = rectified

    def forward(self, x: Tensor) -> Tensor:
        for name in self.borders:  # ReLU of a quarter of the numbers, and the same as the other way round
            x = torch.relu(max_pool2d(self.get_submodule(name)(x), 2))
        x = x.flatten(1)
        for layer in self.full[:-1]:
            x = torch.relu(layer(x))
            x = x if self.drop is None else self.drop(x)
        outputs: Tensor = self.full[-1](x)
        return torch.relu(outputs) if self.rectified else outputs

    def add_gradient(
        self, parameters: Mapping[str, Tensor], keep: Tensor, to: Mapping[str, Tensor],
        x: Tensor, y: Tensor, weights: Tensor, keys: Tensor | None = None, half: bool = False,
    ) -> None:  # fmt: skip
        """keep · parameters + the gradients of n models' cross-entropies, weighted and summed over each one's batch.

        parameters, to: [n, ...] by name.   keep: [n].   x: [n, batch, channels, side, side].   y, weights: [n, batch].
        keys: [n], what dropout draws from (see `offbeat.models.dropout`); None: nothing is dropped.
        half: products have factors of 16 bits (bfloat16), and so is what is kept between them.
        Written out for a GPU: no step of it keeps or moves more than it has to.
        """
        from offbeat.models.conv_gpu import conv_pool, conv_pool_step  # imports Triton
        from offbeat.models.full_gpu import full, full_slope, full_step

        def both(of: Mapping[str, Tensor], name: str) -> tuple[Tensor, Tensor]:
            return of[f"{name}.weight"], of[f"{name}.bias"]

        spare = (1 << (x.shape[2] - 1).bit_length()) - x.shape[2]  # channels of a pixel are read together
        images = pad(x.permute(0, 1, 3, 4, 2), (0, spare)).to(torch.bfloat16 if half else x.dtype)  # channels last
        seen: list[tuple[Tensor, Tensor]] = []
        for name, border in self.borders.items():
            images = (pad(images, (0, 0, *4 * (border,))) if border else images).contiguous()
            pooled, chosen = conv_pool(images, *both(parameters, name))
            seen.append((images, chosen))
            images = pooled
        last = images.permute(0, 1, 4, 2, 3)
        inputs, layers = [last.flatten(2)], [f"full.{i}" for i in range(len(self.full))]
        p = 0.0 if self.drop is None or keys is None else self.drop.p
        for call, name in enumerate(layers, 1):
            end = name == layers[-1]
            here = full(inputs[-1], *both(parameters, name), relu=self.rectified or not end, exact=end)
            if p and keys is not None and not end:
                here = dropped(here, keys, call, p)
            inputs.append(here)
        outputs = inputs.pop()
        slope = torch.softmax(outputs, 2)
        slope.scatter_add_(2, y.unsqueeze(2), -torch.ones_like(slope[..., :1]))
        if self.rectified:
            slope *= outputs > 0
        slope = (slope * weights.unsqueeze(2)).to(images.dtype)
        for name in reversed(layers):
            here = inputs.pop()
            full_step(slope, here, both(parameters, name), keep, both(to, name))
            slope = full_slope(slope, parameters[f"{name}.weight"], here)
            if p and name != layers[0]:  # what was dropped is not positive: nothing comes through there
                slope /= 1.0 - p
        back: Tensor | None = slope.view(last.shape).permute(0, 1, 3, 4, 2)
        for name, border in reversed(self.borders.items()):
            assert back is not None
            images, chosen = seen.pop()
            old, new = both(parameters, name), both(to, name)
            back = conv_pool_step(images, chosen, back.contiguous(), old, keep, new, by_input=bool(seen))
            if back is not None and border:
                back = back[:, :, border:-border, border:-border]


class _TwoConv(_Chain):
    """Two 5 × 5 convolutions of these channels and full layers of these widths; the images are padded."""

    def __init__(
        self, name: str, shape: Sequence[int], classes: int, channels: tuple[int, int], widths: tuple[int, ...],
        padding: int = 0, rectified: bool = False,
    ) -> None:  # fmt: skip
        colours, side = _square(name, shape)
        side = ((side + 2 * padding - 4) // 2 - 4) // 2  # a 5 × 5 kernel takes 4, pooling halves
        if side < 1:
            raise SettingError(f"{name} needs images of at least {16 - 2 * padding} pixels a side, not {shape[1]}; "
                               "use mlp or softmax")  # fmt: skip
        convolutions = nn.Conv2d(colours, channels[0], 5, padding=padding), nn.Conv2d(channels[0], channels[1], 5)
        super().__init__(convolutions, (channels[1] * side * side, *widths, classes), rectified=rectified)


class LeNet5(_TwoConv):
    """LeNet-5: convolutions of 6 and 16 channels, full layers of 120 and 84.

    Smaller images than 32 × 32 are padded by 2. Differs from LeCun et al. 1998 as everybody's does: ReLU and
    max-pooling, all channels connected, plain output.

    padding: pixels added at every side; default: 2 for images smaller than 32 × 32.
    rectified: whether the outputs pass a ReLU, too, as in FedAST's demonstration.
    """

    def __init__(self, shape: Sequence[int], classes: int, padding: int | None = None, rectified: bool = False) -> None:
        not_negative(padding=padding)
        border = (2 if _square("lenet5", shape)[1] < 32 else 0) if padding is None else padding
        super().__init__("lenet5", shape, classes, (6, 16), (120, 84), border, rectified)


class CNN(_TwoConv):
    """DeFedAvg's network: convolutions of 32 and 64 channels, then a full layer of 512 (§4.1.1).

    The latent size of 1600 that the paper gives is 64 · 5 · 5, for CIFAR-10's 32 × 32; it is 64 · 4 · 4 = 1024
    for 28 × 28. The 32 channels of the first layer are not in the paper but fit its model sizes best: 878,538
    parameters are 3.51 MB for CIFAR-10 (reported 3.53), 582,026 are 2.33 MB for Fashion-MNIST (reported 2.2).
    """

    def __init__(self, shape: Sequence[int], classes: int) -> None:
        super().__init__("cnn", shape, classes, (32, 64), (512,))


class CifarCNN(_TwoConv):
    """FedAST's CIFAR network (Acar et al. 2021): convolutions of 64 and 64 channels, full layers of 384 and 192."""

    def __init__(self, shape: Sequence[int], classes: int) -> None:
        super().__init__("cifar-cnn", shape, classes, (64, 64), (384, 192))


class DropoutCNN(_Chain):
    """PersA-FL's networks: ℓ convolutions with pooling, then ℓ full layers, with dropout (appendix D).

    The paper prints no sizes. Here convolutions are 3 × 3 and padded, with 32 channels in the first and 64 in the
    others, hidden full layers have 128 units, and dropout is between full layers.

    layers: ℓ, 3 for CIFAR-10.   dropout: its probability.
    """

    def __init__(self, shape: Sequence[int], classes: int, layers: int = 3, dropout: float = 0.25) -> None:
        at_least(1, layers=layers)
        fraction(dropout=dropout)
        colours, side = _square("DropoutCNN", shape)
        if side >> layers < 1:
            raise SettingError(f"layers = {layers}: pooling halves images of {side} pixels a side too often")
        channels = (colours, 32, *(64,) * (layers - 1))
        sizes = (channels[-1] * (side >> layers) ** 2, *(128,) * (layers - 1), classes)
        super().__init__((nn.Conv2d(a, b, 3, padding=1) for a, b in itertools.pairwise(channels)), sizes, dropout)


def _square(name: str, shape: Sequence[int]) -> tuple[int, int]:
    """(channels, side) of square images."""
    if len(shape) != 3 or shape[1] != shape[2]:
        remedy = CHANNELS_LAST if channels_last(shape) else ""
        raise SettingError(f"{name} takes square images [channels, side, side], the data are {list(shape)}{remedy}")
    return shape[0], shape[1]


CHANNELS_LAST = "; channels come first: move the last axis, np.moveaxis(x, -1, 1)"


def channels_last(shape: Sequence[int]) -> bool:
    """Whether these look like square images with their channels last."""
    return len(shape) == 3 and shape[0] == shape[1] > 4 and shape[2] in (1, 3, 4)
