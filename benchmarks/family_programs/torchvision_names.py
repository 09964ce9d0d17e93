"""Names of compiled operators of torchvision, so that it can be imported beside a torch of another build."""

from __future__ import annotations

import functools

import torch


@functools.cache
def declare() -> torch.library.Library:
    """Two operators by name: torchvision's import looks for them, and so do timm, transformers and diffusers; no model
    here calls them."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library
