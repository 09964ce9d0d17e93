"""Wide residual networks as Alpa trained them (benchmark/alpa/suite_wresnet.py): ResNet-50 or 101 with `channels` base
channels, the 3 x 3 convolution of every bottleneck `width` times as wide, fp32, images of 224."""

from __future__ import annotations

from shardplan.model.types import Model
from shardplan.models.graph import GraphWriter

_BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}
_CLASSES = 1024


def wide_resnet(name: str, layers: int, channels: int, width: int, batch: int) -> Model:
    """The training graph's forward part: images [batch, 3, 224, 224] to logits [batch, 1024]."""
    writer = _Writer(batch)
    x = writer.graph.input("images", (batch, 3, 224, 224), "float")
    x = writer.unit(x, 3, channels, 7, 2, 112, "stem", relu=True)
    shape = (batch, channels, 56, 56)
    pool = {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}
    x = writer.graph.apply("MaxPool", [x], shape, "stem", **pool)
    have, size = channels, 56
    for stage, count in enumerate(_BLOCKS[layers]):
        filters = channels << stage
        for block in range(count):
            stride = 2 if stage and not block else 1
            size //= stride
            x = writer.bottleneck(x, have, filters, width, stride, size, f"blocks.{stage}.{block}")
            have = 4 * filters
    x = writer.graph.apply("GlobalAveragePool", [x], (batch, have, 1, 1), "head")
    x = writer.graph.apply("Flatten", [x], (batch, have), "head", axis=1)
    x = writer.graph.apply(
        "MatMul", [x, writer.graph.weight("head.weight", (have, _CLASSES))], (batch, _CLASSES), "head"
    )
    return writer.graph.model(name, [x], {"batch": batch})


class _Writer:
    """Writes convolutions with their normalisation. Values are [batch, channels, size, size]."""

    def __init__(self, batch: int) -> None:
        self.graph = GraphWriter("float")
        self.batch = batch

    def bottleneck(self, x: str, have: int, filters: int, width: int, stride: int, size: int, module: str) -> str:
        """1 x 1 to `filters`, 3 x 3 to `width` times that, 1 x 1 to four times `filters`, and what went in."""
        graph, wide, out = self.graph, filters * width, 4 * filters
        y = self.unit(x, have, filters, 1, 1, size * stride, f"{module}.0", relu=True)
        y = self.unit(y, filters, wide, 3, stride, size, f"{module}.1", relu=True)
        y = self.unit(y, wide, out, 1, 1, size, f"{module}.2", relu=False)
        if have != out:
            x = self.unit(x, have, out, 1, stride, size, f"{module}.skip", relu=False)
        shape = (self.batch, out, size, size)
        return graph.apply("Relu", [graph.apply("Add", [x, y], shape, module)], shape, module)

    def unit(self, x: str, have: int, out: int, kernel: int, stride: int, size: int, module: str, *, relu: bool) -> str:
        """A convolution to `out` channels of `size` pixels square, normalised over the batch."""
        graph, shape = self.graph, (self.batch, out, size, size)
        weight = graph.weight(f"{module}.conv.weight", (out, have, kernel, kernel))
        pad = kernel // 2
        form = {"kernel_shape": (kernel, kernel), "strides": (stride, stride), "pads": (pad,) * 4}
        x = graph.apply("Conv", [x, weight], shape, f"{module}.conv", **form)
        scale = [graph.weight(f"{module}.norm.{part}", (out,)) for part in ("weight", "bias")]
        state = [graph.unknown_constant(f"{module}.norm.{part}", (out,), "float") for part in ("mean", "var")]
        x = graph.apply("BatchNormalization", [x, *scale, *state], shape, f"{module}.norm", epsilon=1e-5)
        return graph.apply("Relu", [x], shape, module) if relu else x
