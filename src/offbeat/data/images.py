"""A folder of images, one sub-folder for each class, decoded when they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offbeat.core.errors import DataError

_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
_TESTS = ("test", "validation", "valid", "val")


class Images:
    """Images with the number of their class, in the order of their names.

    classes: the names of the sub-folders, in sorted order.
    """

    def __init__(self, folder: Path) -> None:
        self.classes = tuple(sorted(place.name for place in folder.iterdir() if place.is_dir()))
        self.files = [
            (file, number)
            for number, name in enumerate(self.classes)
            for file in sorted((folder / name).rglob("*"))
            if file.suffix.lower() in _ENDINGS
        ]
        self.targets = [number for _, number in self.files]
        if not self.files:
            raise DataError(f"{folder}: expected one folder of images per class, found no images")

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, at: int) -> dict[str, Any]:
        from PIL import Image  # optional

        path, number = self.files[at]
        with Image.open(path) as image:
            return {"x": pixels(image), "y": number}


def pixels(image: Any) -> Tensor:
    """A PIL image as bytes, [channels, height, width]."""
    if image.mode not in ("L", "RGB"):
        image = image.convert("L" if image.mode in ("1", "LA", "I", "I;16", "F") else "RGB")
    found = torch.from_numpy(np.array(image))
    return found.unsqueeze(0) if found.dim() == 2 else found.movedim(2, 0).contiguous()


def split_folder(folder: Path) -> tuple[Path, Path] | None:
    """The folders with training and with test images, if there are both."""
    tests = [folder / name for name in _TESTS if (folder / name).is_dir()]
    return (folder / "train", tests[0]) if tests and (folder / "train").is_dir() else None
