"""Import this first: torchvision as the package index has it expects operators of a CUDA build of torch.

Simulators import torchvision for its data sets, which are not used here. Declaring the operators that its import looks
for is enough.
"""

import torch

_library = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
