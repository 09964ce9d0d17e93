"""Options that communicate inside the operator, carried out for all devices together: statistics, borders, lookups."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from rule_devices import Device


def split_dims(device: Device) -> int:
    return device.option.operands[0].dim


def all_reduce(values: list[np.ndarray], combining=np.add) -> np.ndarray:
    return combining.reduce(values)


def softmax(devices: list[Device]) -> list[list[np.ndarray]]:
    first = devices[0]
    rank = first.case.operands[0].ndim
    axis = first.attributes.get("axis", -1 if first.case.opset >= 13 else 1) % rank
    axes = (axis,) if first.case.opset >= 13 else tuple(range(axis, rank))
    data = [device.operands[0] for device in devices]
    top = all_reduce([x.max(axis=axes, keepdims=True) for x in data], np.maximum)
    total = all_reduce([np.exp(x - top).sum(axis=axes, keepdims=True) for x in data])
    if first.case.kind == "LogSoftmax":
        return [[x - top - np.log(total)] for x in data]
    return [[np.exp(x - top) / total] for x in data]


def normalise(axes_of, *, centre: bool = True):
    """Normalisation over dims of which one is split: mean and mean square are all-reduced."""

    def together(devices: list[Device]) -> list[list[np.ndarray]]:
        first = devices[0]
        axes, view = axes_of(first)
        epsilon = first.attributes.get("epsilon", 1e-5)
        data = [view(device.operands[0]) for device in devices]
        mean = all_reduce([x.mean(axis=axes, keepdims=True) for x in data]) / len(data) * centre
        square = all_reduce([((x - mean) ** 2).mean(axis=axes, keepdims=True) for x in data]) / len(data)
        made = []
        for x, device in zip(data, devices, strict=True):
            y = ((x - mean) / np.sqrt(square + epsilon)).reshape(device.operands[0].shape)
            scale, bias = ([*device.operands[1:3], None])[:2]
            channels = (slice(None), *[None] * (y.ndim - 2)) if first.case.kind in PER_CHANNEL else ()
            y = y * scale[channels] + (0 if bias is None else bias[channels])
            extra = [mean, 1 / np.sqrt(square + epsilon)] if first.case.kind == "LayerNormalization" else []
            made.append([y.astype(np.float32), *extra][: first.case.outputs])
        return made

    return together


PER_CHANNEL = {"InstanceNormalization", "GroupNormalization"}


def from_axis(device: Device):
    rank = device.case.operands[0].ndim
    return tuple(range(device.attributes.get("axis", -1) % rank, rank)), lambda x: x


def over_space(device: Device):
    return tuple(range(2, device.case.operands[0].ndim)), lambda x: x


def over_groups(device: Device):
    count = device.attributes["num_groups"]
    return (2,), lambda x: x.reshape(x.shape[0], count, -1)


def batch_norm(devices: list[Device]) -> list[list[np.ndarray]]:
    """Training form: statistics of the whole batch, and running averages."""
    axes = (0, *range(2, devices[0].operands[0].ndim))
    data = [device.operands[0] for device in devices]
    mean = all_reduce([x.mean(axis=axes) for x in data]) / len(data)
    shape = (-1, *[1] * (data[0].ndim - 2))
    square = all_reduce([((x - mean.reshape(shape)) ** 2).mean(axis=axes) for x in data]) / len(data)
    made = []
    for x, device in zip(data, devices, strict=True):
        _, scale, bias, old_mean, old_square = device.operands
        keep = device.attributes.get("momentum", 0.9)
        epsilon = device.attributes.get("epsilon", 1e-5)
        y = (x - mean.reshape(shape)) / np.sqrt(square.reshape(shape) + epsilon) * scale.reshape(shape)
        made.append(
            [y + bias.reshape(shape), old_mean * keep + mean * (1 - keep), old_square * keep + square * (1 - keep)]
        )
    return made


def merged_reduction(devices: list[Device]) -> list[list[np.ndarray]]:
    kind = devices[0].case.kind
    after = {"GlobalLpPool": np.sqrt, "ReduceL2": np.sqrt, "ReduceLogSum": np.log, "ReduceLogSumExp": np.log}[kind]
    inverse = {"GlobalLpPool": np.square, "ReduceL2": np.square, "ReduceLogSum": np.exp, "ReduceLogSumExp": np.exp}[
        kind
    ]
    made = after(all_reduce([inverse(device.run()[0]) for device in devices]))
    return [[made]] * len(devices)


def arg_max(devices: list[Device]) -> list[list[np.ndarray]]:
    """The best pair of value and index."""
    first = devices[0]
    axis = first.attributes.get("axis", 0)
    best = np.argmax if first.case.kind == "ArgMax" else np.argmin
    length = first.operands[0].shape[axis]
    index = [d.run()[0].reshape(best(d.operands[0], axis=axis).shape) + d.rank * length for d in devices]
    whole = np.concatenate([d.operands[0] for d in devices], axis=axis)
    values = np.stack([np.take_along_axis(whole, np.expand_dims(i, axis), axis).squeeze(axis) for i in index])
    last = first.attributes.get("select_last_index", 0)
    winner = len(devices) - 1 - best(values[::-1], axis=0) if last else best(values, axis=0)
    found = np.take_along_axis(np.stack(index), winner[None], 0)[0]
    if first.attributes.get("keepdims", 1):
        found = np.expand_dims(found, axis)
    return [[found]] * len(devices)


def attention(devices: list[Device]) -> list[list[np.ndarray]]:
    """Each device with its part of the mask that positions make."""
    for device in devices:
        positioned(device)
    if devices[0].option.factor == "s":
        return [device.run() for device in devices]
    return attention_to_keys(devices)


def positioned(device: Device) -> None:
    """Causality and windows as a mask: the device's rows and columns of the whole one."""
    case, position = device.case, {"is_causal": 0, "left_window_size": -1, "right_window_size": -1}
    causal, left, right = (device.attributes.pop(name, default) for name, default in position.items())
    queries, keys = case.operands[0].shape[-2], case.operands[1].shape[-2]
    past = case.operands[4].shape[2] if len(case.operands) > 4 and case.operands[4] is not None else 0
    mask = np.ones((queries, keys + past), dtype=bool)
    mask = np.tril(mask, past) if causal else mask
    mask = np.triu(mask, past - left) if left >= 0 else mask
    mask = np.tril(mask, past + right) if right >= 0 else mask
    parts = np.split(mask, device.ways, axis="st".index(device.option.factor))
    given = device.operands[3] if len(device.operands) > 3 else None
    mask = parts[device.rank] if given is None or given.dtype != bool else given & parts[device.rank]
    if given is not None and given.dtype != bool:
        mask = given + np.where(mask, 0, -np.inf).astype(given.dtype)
    device.operands = [*device.operands[:3], mask, *device.operands[4:]]


def attention_to_keys(devices: list[Device]) -> list[list[np.ndarray]]:
    """Keys split: every device attends to its keys; results are weighted by their sums of exponentials.

    The scores before softmax are a result of the operator itself (mode 2)."""
    case = devices[0].case
    mode = case.attributes.get("qk_matmul_output_mode", 0)
    made, scores, shown = [], [], []
    for device in devices:
        attributes = device.attributes | {"qk_matmul_output_mode": 2}
        result, *_, score = replace(case, outputs=4).run(device.operands, attributes)
        made.append(result)
        scores.append(score.astype(np.float64))
        shown.append(replace(case, outputs=4).run(device.operands, device.attributes)[3])
    top = all_reduce([score.max(axis=-1, keepdims=True) for score in scores], np.maximum)
    top = np.where(np.isinf(top), 0, top)
    sums = [np.exp(score - top).sum(axis=-1, keepdims=True) for score in scores]
    total = np.maximum(all_reduce(sums), 1e-30)
    if mode == 3:
        shown = [np.exp(score - top) / total for score in scores]
    packed = made[0].ndim == 3
    shares = [(part / total).swapaxes(1, 2) if packed else part / total for part in sums]
    heads = [
        part.reshape(*part.shape[:2], share.shape[2], -1) if packed else part
        for part, share in zip(made, shares, strict=True)
    ]
    counted = [np.where(share > 0, share * part, 0) for share, part in zip(shares, heads, strict=True)]
    whole = all_reduce(counted).reshape(made[0].shape)
    caches = [[x.astype(np.float32) for x in device.operands[1:3]] for device in devices]
    return [[whole.astype(np.float32), *cache, part][: case.outputs] for cache, part in zip(caches, shown, strict=True)]


def masked(lookup):
    """A lookup in the part of the table that a device holds; zero where the index lies elsewhere."""

    def together(devices: list[Device]) -> list[list[np.ndarray]]:
        made = []
        for device in devices:
            axis = device.attributes.get("axis", 0)
            length = device.operands[0].shape[axis]
            size = device.case.operands[0].shape[axis]
            index = (
                np.where(device.operands[1] < 0, device.operands[1] + size, device.operands[1]) - device.rank * length
            )
            inside = (index >= 0) & (index < length)
            device.operands[1] = np.where(inside, index, 0)
            found = device.run()[0]
            made.append([np.where(lookup(inside, found, axis), found, 0).astype(found.dtype)])
        return made

    return together


def inside_gather(inside, found, axis):
    shape = (*[1] * axis, *inside.shape, *[1] * (found.ndim - inside.ndim - axis))
    return inside.reshape(shape)


def one_hot(devices: list[Device]) -> list[list[np.ndarray]]:
    made = []
    for device in devices:
        axis = device.attributes.get("axis", -1) % device.whole[0].ndim
        length = device.local()[axis]
        size = length * device.ways
        index = np.where(device.operands[0] < 0, device.operands[0] + size, device.operands[0])
        classes = np.arange(length) + device.rank * length
        shape = [1] * device.whole[0].ndim
        shape[axis] = length
        hit = np.expand_dims(index, axis) == classes.reshape(shape)
        off, on = device.operands[2]
        made.append([np.where(hit, on, off)])
    return made


def borders(devices: list[Device]) -> list[list[np.ndarray]]:
    """Each device gets the rows around its shard that its windows reach; at the ends there is padding."""
    first = devices[0]
    dim = first.option.operands[0].dim
    whole = first.case.operands[0]
    space = whole.ndim - 2
    attributes = dict(first.attributes)
    weight = {"Conv": 1, "ConvInteger": 1, "QLinearConv": 3}.get(first.case.kind, 0)
    kernel = attributes.get("kernel_shape", first.case.operands[weight].shape[2:])
    strides = attributes.get("strides", [1] * space)
    reaches = [(k - 1) * d + 1 for k, d in zip(kernel, attributes.get("dilations", [1] * space), strict=True)]
    reach = reaches[dim - 2]
    pads = list(attributes.get("pads", [0] * 2 * space))
    if attributes.get("auto_pad", "NOTSET").startswith("SAME"):
        both = [
            max(0, (made - 1) * stride + r - size)
            for made, stride, r, size in zip(first.whole[0].shape[2:], strides, reaches, whole.shape[2:], strict=True)
        ]
        less, more = [n // 2 for n in both], [n - n // 2 for n in both]
        pads = less + more if attributes["auto_pad"] == "SAME_UPPER" else more + less
    before = pads[dim - 2]
    made_rows = first.whole[0].shape[dim] // first.ways
    made = []
    for device in devices:
        start = device.rank * made_rows * strides[dim - 2] - before
        stop = start + (made_rows - 1) * strides[dim - 2] + reach
        chunk = np.take(whole, range(max(0, start), min(whole.shape[dim], stop)), axis=dim)
        local = whole.shape[dim] // device.ways
        held = range(device.rank * local, (device.rank + 1) * local)
        received = [row for row in range(max(0, start), min(whole.shape[dim], stop)) if row not in held]
        rows = whole.size // whole.shape[dim] * whole.itemsize
        assert all(c.payload_bytes >= len(received) * rows for c in device.option.inner if c.phase == "forward")
        assert bool(device.option.inner) or not received
        own = list(pads)
        own[dim - 2], own[dim - 2 + space] = max(0, -start), max(0, stop - whole.shape[dim])
        device.operands[0] = chunk
        device.attributes |= {"pads": own, "auto_pad": "NOTSET"}
        made.append(device.run())
    return made


def lp_norm(devices: list[Device]) -> list[list[np.ndarray]]:
    axis, power = devices[0].attributes.get("axis", -1), devices[0].attributes.get("p", 2)
    norm = all_reduce([(np.abs(d.operands[0]) ** power).sum(axis=axis, keepdims=True) for d in devices]) ** (1 / power)
    return [[np.where(norm == 0, 0, device.operands[0] / norm)] for device in devices]


def mean_variance(devices: list[Device]) -> list[list[np.ndarray]]:
    axes = tuple(devices[0].attributes.get("axes", (0, 2, 3)))
    means = [device.operands[0].mean(axis=axes, keepdims=True) for device in devices]
    squares = [(device.operands[0] ** 2).mean(axis=axes, keepdims=True) for device in devices]
    mean, square = all_reduce(means) / len(devices), all_reduce(squares) / len(devices)
    return [[(device.operands[0] - mean) / (np.sqrt(square - mean**2) + 1e-9)] for device in devices]


def hard_max(devices: list[Device]) -> list[list[np.ndarray]]:
    """One at the first largest element of all."""
    axis = devices[0].attributes.get("axis", -1)
    length = devices[0].operands[0].shape[axis]
    whole = np.concatenate([device.operands[0] for device in devices], axis=axis)
    best = np.expand_dims(whole.argmax(axis=axis), axis)
    places = np.arange(length * len(devices)).reshape(
        [-1 if dim == axis % whole.ndim else 1 for dim in range(whole.ndim)]
    )
    hits = np.split((places == best).astype(whole.dtype), len(devices), axis=axis)
    return [[hit] for hit in hits]


def quantize_range(devices: list[Device]) -> list[list[np.ndarray]]:
    low = min(0, *(device.operands[0].min() for device in devices))
    high = max(0, *(device.operands[0].max() for device in devices))
    scale = np.float32((high - low) / 255)
    zero = np.uint8(np.clip(np.rint(-low / scale), 0, 255))
    return [[np.clip(np.rint(d.operands[0] / scale) + zero, 0, 255).astype(np.uint8), scale, zero] for d in devices]


def losses(devices: list[Device]) -> list[list[np.ndarray]]:
    """Each device knows the scores of its samples and classes; sums of picked scores and of weights are all-reduced."""
    first = devices[0]
    is_logits = first.case.kind == "SoftmaxCrossEntropyLoss"
    how, ignored = first.attributes.get("reduction", "mean"), first.attributes.get("ignore_index")
    by_class = first.option.factor == "c"
    logs = [device.operands[0].astype(np.float64) for device in devices]
    if is_logits:
        top = [x.max(axis=1, keepdims=True) for x in logs]
        top = [all_reduce(top, np.maximum)] * len(devices) if by_class else top
        total = [np.exp(x - t).sum(axis=1, keepdims=True) for x, t in zip(logs, top, strict=True)]
        total = [all_reduce(total)] * len(devices) if by_class else total
        logs = [x - t - np.log(n) for x, t, n in zip(logs, top, total, strict=True)]
    picked, weights = [], []
    for device, log in zip(devices, logs, strict=True):
        labels = device.operands[1]
        held = labels - (device.rank * log.shape[1] if by_class else 0)
        inside = (held >= 0) & (held < log.shape[1]) & (labels != ignored)
        at = np.where(inside, held, 0)
        weight = device.operands[2][at] if len(device.operands) > 2 else np.ones(at.shape)
        weight = np.where(inside, weight, 0)
        picked.append(-np.take_along_axis(log, at[:, None], 1)[:, 0] * weight)
        weights.append(weight)
    if how == "none":
        made = [all_reduce(picked)] * len(devices) if by_class and is_logits else picked
    else:
        sums = [x.sum() for x in picked]
        merged = first.option.results[0].kind == "R"
        made = [all_reduce(sums)] * len(devices) if merged else sums
        if how == "mean":
            count = (
                all_reduce([w.sum() for w in weights]) if merged or by_class else first.operands[1].size * len(devices)
            )
            made = [x / count for x in made]
    return [
        [np.float32(loss), log.astype(np.float32)][: first.case.outputs] for loss, log in zip(made, logs, strict=True)
    ]


def recurrent(devices: list[Device]) -> list[list[np.ndarray]]:
    """Hidden units split: at each step every device computes its units from the gathered state (one direction)."""
    case = devices[0].case
    gates = {"RNN": 1, "LSTM": 4, "GRU": 3}[case.kind]
    steps, batch = devices[0].operands[0].shape[:2]
    parts = []
    for device in devices:
        w, r = (np.split(device.operands[i][0], gates) for i in (1, 2))
        bias = device.operands[3][0] if len(device.operands) > 3 else np.zeros(2 * gates * len(w[0]))
        parts.append((w, r, np.split(bias, 2 * gates)))
    size = len(parts[0][0][0])
    h = [np.zeros((batch, size)) for _ in devices]
    c = [np.zeros((batch, size)) for _ in devices]
    made = [[] for _ in devices]
    for step in range(steps):
        state = np.concatenate(h, axis=1)
        x = devices[0].operands[0][step]
        sums = [[x @ w[g].T + b[g] for g in range(gates)] for w, _, b in parts]
        back = [[state @ r[g].T + b[gates + g] for g in range(gates)] for _, r, b in parts]
        if case.kind == "GRU":
            reset = [sigmoid(s[1] + q[1]) for s, q in zip(sums, back, strict=True)]
            gated = np.concatenate([q * v for q, v in zip(reset, h, strict=True)], axis=1)
            for (_, r, b), q in zip(parts, back, strict=True):
                q[2] = gated @ r[2].T + b[gates + 2]
        for i, (s, q) in enumerate(zip(sums, back, strict=True)):
            h[i], c[i] = step_of(case.kind, [a + b for a, b in zip(s, q, strict=True)], h[i], c[i])
            made[i].append(h[i])
    return [
        [np.stack(m)[:, None].astype(np.float32), a[None].astype(np.float32), b[None].astype(np.float32)][
            : case.outputs
        ]
        for m, a, b in zip(made, h, c, strict=True)
    ]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def step_of(kind: str, z: list[np.ndarray], h: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """New hidden and cell state from the sums of each gate."""
    if kind == "RNN":
        return np.tanh(z[0]), c
    if kind == "GRU":
        update = sigmoid(z[0])
        return (1 - update) * np.tanh(z[2]) + update * h, c
    cell = sigmoid(z[2]) * c + sigmoid(z[0]) * np.tanh(z[3])
    return sigmoid(z[1]) * np.tanh(cell), cell


def triangle(devices: list[Device]) -> list[list[np.ndarray]]:
    """The diagonal shifts by the rows above, or the columns left of, what a device holds."""
    made = []
    for device in devices:
        dim, (rows, columns) = split_dims(device), device.operands[0].shape[-2:]
        is_row = dim == device.operands[0].ndim - 2
        shift = int(device.operands[1]) if len(device.operands) > 1 else 0
        shift += device.rank * rows if is_row else -device.rank * columns
        made.append([(np.triu if device.attributes.get("upper", 1) else np.tril)(device.operands[0], shift)])
    return made


def experts(devices: list[Device]) -> list[list[np.ndarray]]:
    """Each device works on the experts it holds; the oracle is told which is its first."""
    for device in devices:
        device.attributes["first"] = device.rank * device.operands[2].shape[0]
    return [device.run() for device in devices]


def known(devices: list[Device]) -> list[list[np.ndarray]]:
    """Every device knows the shape of the whole."""
    return [device.whole for device in devices]


TOGETHER = {
    "Shape": known, "Size": known,
    "LpNormalization": lp_norm, "MeanVarianceNormalization": mean_variance, "Hardmax": hard_max,
    "DynamicQuantizeLinear": quantize_range, "NegativeLogLikelihoodLoss": losses, "SoftmaxCrossEntropyLoss": losses,
    "RNN": recurrent, "LSTM": recurrent, "GRU": recurrent,
    "Trilu": triangle,
    "com.microsoft.MoE": experts, "com.microsoft.QMoE": experts,
    "com.microsoft.GatherBlockQuantized": masked(inside_gather),
    "Softmax": softmax, "LogSoftmax": softmax, "LayerNormalization": normalise(from_axis),
    "RMSNormalization": normalise(from_axis, centre=False), "InstanceNormalization": normalise(over_space),
    "GroupNormalization": normalise(over_groups), "BatchNormalization": batch_norm,
    "GlobalLpPool": merged_reduction,
    "ReduceL2": merged_reduction, "ReduceLogSum": merged_reduction, "ReduceLogSumExp": merged_reduction,
    "ArgMax": arg_max, "ArgMin": arg_max, "Attention": attention, "Gather": masked(inside_gather),
    "GatherElements": masked(lambda inside, *_: inside), "OneHot": one_hot,
    "Conv": borders, "ConvInteger": borders, "QLinearConv": borders, "MaxPool": borders,
    "AveragePool": borders, "LpPool": borders,
}  # fmt: skip
