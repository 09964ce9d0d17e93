"""Losses that are computed outside of a model, of results in parts, beside those of one process."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn import functional
from torch_by_hand import Net
from torch_cases import mesh_of

import shardplan.torch
from shardplan.plan.types import Plan

SHAPES = ((8, 16), (4, 16, 8), (16,))


def compare(plan: Plan) -> list[str]:
    """What is wrong, over shapes, reductions and every pair of placements."""
    mesh, wrong = mesh_of(plan), []
    torch.manual_seed(5)
    for shape in SHAPES:
        logits = torch.randn(shape, dtype=torch.float64)
        target = torch.randint(16, (*shape[:1], *shape[2:]) if len(shape) > 1 else ())
        if len(shape) > 1:
            target.flatten()[::3] = -1
        choices = [Replicate(), *(Shard(dim) for dim in range(len(shape)))]
        for pair, reduction in itertools.product(itertools.product(choices, repeat=2), ("mean", "sum")):
            theirs = logits.clone().requires_grad_()
            given = distribute_tensor(logits.clone(), mesh, list(pair)).requires_grad_()
            loss = shardplan.torch.cross_entropy(given, target, ignore_index=-1, reduction=reduction)
            wanted = functional.cross_entropy(theirs, target, ignore_index=-1, reduction=reduction)
            loss.backward()
            wanted.backward()
            if not (torch.allclose(loss, wanted) and torch.allclose(given.grad.full_tensor(), theirs.grad)):
                wrong.append(f"{shape} {pair} {reduction}")
    return wrong


def sent(plan: Plan) -> int:
    """The largest number of elements that a collective takes, of logits whose classes are split over both axes."""
    mesh = mesh_of(plan)
    logits = distribute_tensor(torch.randn(8, 64, requires_grad=True), mesh, [Shard(1), Shard(1)])
    largest = [0]

    class Watch(CommDebugMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if "c10d_functional" in str(func) and "wait" not in str(func):
                largest[0] = max(largest[0], args[0].numel())
            return super().__torch_dispatch__(func, types, args, kwargs)

    with Watch():
        shardplan.torch.cross_entropy(logits, torch.zeros(8, dtype=torch.long)).backward()
    return largest[0]


class Case(NamedTuple):
    """What a loss is called with: operands that may have gradients, the first of which is a model's result; targets;
    and keywords, each to be tried by itself beside none."""

    results: Sequence[Tensor]
    targets: Sequence[Tensor] = ()
    options: Mapping[str, Any] = {}


def cases() -> dict[str, Case]:
    """Of every loss of `torch.nn.functional`, in double precision. Classes that are ignored lie in few of the rows."""
    torch.manual_seed(3)
    one, two, three = torch.randn(3, 8, 8, dtype=torch.float64)
    signs, classes = torch.where(two > 0, 1.0, -1.0), torch.randint(8, (8,))
    some = torch.where(torch.arange(8) % 8 > 5, -100, classes)
    weight, shares = three[0].abs(), one.log_softmax(-1)
    labels = torch.stack([torch.cat([torch.randperm(8)[:3], torch.full((5,), -1)]) for _ in range(8)])
    frames, lengths = torch.randn(16, 8, 8, dtype=torch.float64).log_softmax(-1), torch.full((8,), 16)
    of_classes = {"weight": weight, "label_smoothing": 0.1}
    return {
        "mse_loss": Case([one, two], options={"weight": three.abs()}),
        "l1_loss": Case([one, two]),
        "smooth_l1_loss": Case([one, two], options={"beta": 0.5}),
        "huber_loss": Case([one, two], options={"delta": 0.5}),
        "soft_margin_loss": Case([one], [signs]),
        "binary_cross_entropy": Case([one.sigmoid()], [two.sigmoid()], {"weight": three.abs()}),
        "binary_cross_entropy_with_logits": Case([one], [two.sigmoid()], {"pos_weight": weight}),
        "kl_div": Case([shares], [two.softmax(-1)], {"log_target": True}),
        "poisson_nll_loss": Case([one], [two.abs()], {"full": True}),
        "gaussian_nll_loss": Case([one, two, three.abs() + 0.1], options={"full": True}),
        "cross_entropy": Case([one], [some], of_classes),
        "cross_entropy of shares": Case([one], [two.softmax(-1)], of_classes),
        "cross_entropy of places": Case([one.unflatten(1, (4, 2))], [some[:, None].expand(8, 2) % 4], {}),
        "linear_cross_entropy": Case([one, two], [classes]),
        "nll_loss": Case([shares], [some], {"weight": weight}),
        "cosine_embedding_loss": Case([one, two], [signs[:, 0]], {"margin": 0.1}),
        "triplet_margin_loss": Case([one, two, three], options={"swap": True}),
        "triplet_margin_with_distance_loss": Case([one, two, three], options={"margin": 2.0}),
        "multi_margin_loss": Case([one], [classes], {"weight": weight}),
        "multilabel_margin_loss": Case([one], [labels]),
        "multilabel_soft_margin_loss": Case([one], [(two > 0).double()], {"weight": weight}),
        "hinge_embedding_loss": Case([one], [signs], {"margin": 0.5}),
        "margin_ranking_loss": Case([one, two], [signs], {"margin": 0.1}),
        "ctc_loss": Case([frames], [labels.clamp(1)[:, :3], lengths, lengths // 8]),
    }


def outside(plan: Plan, whole: bool) -> list[str]:
    """The losses whose values or gradients are not those of one process, over reductions, keywords and placements of
    the first result; the others are whole, and targets also plain tensors. Not `whole`: means without keywords, and one
    placement."""
    mesh, wrong = mesh_of(plan), []
    model = shardplan.torch.parallelize(Net(), plan, mesh)
    model(torch.randn(4, 8))
    splits = ([Shard(1), Shard(0)], [Replicate(), Shard(0)])[: 2 if whole else 1]
    for name, case in cases().items():
        options, reductions = (None, *case.options), ("mean", "sum", "none")
        for reduction, option, split in itertools.product(
            reductions if whole else reductions[:1], options if whole else (None,), splits
        ):
            how = {"reduction": reduction, **({option: case.options[option]} if option else {})}
            try:
                theirs = list(_loss_and_gradients(name, case, how, None))
                for plain in (False, True):
                    ours = list(_loss_and_gradients(name, case, how, [mesh, split], plain=plain))
                    if not all(map(torch.allclose, ours, theirs)):
                        wrong.append(f"{name} {reduction} {option} {split} {plain}")
            except (NotImplementedError, RuntimeError) as problem:
                wrong.append(f"{name} {reduction} {option} {split}: {problem}")
    return wrong


def _loss_and_gradients(
    name: str, case: Case, how: Mapping[str, Any], where: Any, *, plain: bool = False
) -> Iterator[Tensor]:
    """Whole, on a mesh with placements of the first result (`where`), or in one process. `plain`: with targets and
    weights of classes as plain tensors."""

    def placed(tensor: Tensor, split: Sequence[Placement] | None = None) -> Tensor:
        if where is None:
            return tensor.clone()
        return distribute_tensor(tensor.clone(), where[0], split or [Replicate()] * 2)

    first, *others = case.results
    results = [placed(first, where and where[1]), *map(placed, others)]
    for result in results:
        result.requires_grad_()
    beside = torch.clone if plain else placed
    options = {key: beside(given) if isinstance(given, Tensor) else given for key, given in how.items()}
    loss = getattr(functional, name.split()[0])(*results, *map(beside, case.targets), **options)
    weights = torch.linspace(1, 2, loss.numel(), dtype=torch.float64).view(loss.shape)
    (loss * beside(weights)).sum().backward()
    yield _whole(loss.detach())
    yield from (_whole(result.grad) for result in results)


def beside(plan: Plan) -> list[float]:
    """How far what is computed of a model's result with plain tensors beside is from one process: values, gradients,
    and a plain parameter after a step."""
    torch.manual_seed(1)
    x, places = torch.randn(4, 8), torch.tensor([3, 0, 7, 5])
    told = []
    for planned in (False, True):
        torch.manual_seed(2)
        model, scale = Net(), torch.nn.Parameter(torch.linspace(1, 2, 8))
        if planned:
            shardplan.torch.parallelize(model, plan, mesh_of(plan))
        made = model(x)
        found = [
            (made.argmax(-1) == places).float().mean(), made.gather(1, places[:, None]).sum(),
            made[torch.arange(4), places].sum(), torch.where(x > 0, made, x).sum(), ((made * scale - x) ** 2).mean(),
            torch.distributions.Categorical(logits=made).log_prob(places).mean(),
            torch.tensor([torch.allclose(made, made), torch.allclose(made, made + 1)]).float().sum(),
            torch._is_any_true(made > 0).float(), (made > 0).any(1).float().sum(), (made > 0).any((0, 1)).float(),
            _penalty(model),
        ]  # fmt: skip
        torch.stack([_whole(each) for each in found[1:]]).sum().backward()
        gradient = _whole(model.first_weight.grad)
        torch.optim.AdamW([scale], 0.1).step()
        told.append([*map(_whole, found), gradient, scale.detach()])
    return [float((one - other).detach().abs().max()) for one, other in zip(*told, strict=True)]


def _penalty(model: torch.nn.Module) -> Tensor:
    """Of the gradient of a plain input, beside a result, as critics of generators have it."""
    x = torch.linspace(-1, 1, 32).view(4, 8).requires_grad_()
    made = model(x)
    (gradient,) = torch.autograd.grad(made.tanh().sum(), x, create_graph=True)
    return made.mean() + ((gradient.norm(dim=1) - 1) ** 2).mean()


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
