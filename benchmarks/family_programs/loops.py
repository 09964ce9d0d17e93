"""Training loops of one's own: name -> (a function that gives model and batch, the loop).

A loop is given a model and a batch and does what such a loop does, of one process; it returns what it has seen, which
is compared, as are gradients, parameters and buffers afterwards.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn import functional as f

from family_programs import by_hand, updates
from family_programs.batches import labelled_rows
from family_programs.trained import Block, Classifier, Imaged, Scorer, Views
from family_programs.updates import Batch, sgd, step_of

Loop = Callable[[nn.Module, Batch], list[Tensor]]
Make = Callable[[], tuple[nn.Module, Batch]]


def sharpness(model: nn.Module, batch: Batch) -> list[Tensor]:
    """Two passes a step: uphill by the gradient, back again, down by the gradient from there (SAM)."""
    optimizer, seen = sgd(model), []
    for _ in range(2):
        optimizer.zero_grad()
        model(*batch).backward()
        up = {}
        with torch.no_grad():
            norm = torch.stack([each.grad.norm() for each in model.parameters() if each.grad is not None]).norm()
            for each in model.parameters():
                up[each] = each.grad * (0.05 / (norm + 1e-12))
                each.add_(up[each])
        optimizer.zero_grad()
        loss = model(*batch)
        loss.backward()
        with torch.no_grad():
            for each, moved in up.items():
                each.sub_(moved)
        optimizer.step()
        seen.append(loss.detach())
    return seen


def thawed(model: nn.Module, batch: Batch) -> list[Tensor]:
    """All but the head frozen in the first steps, then layers thawed one by one; gradients are left None meanwhile."""
    parts = list(model.children())
    for part in parts[:-1]:
        part.requires_grad_(False)
    seen = []
    for part in [parts[-1], *reversed(parts[:-1])]:
        part.requires_grad_(True)
        optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], 0.05)
        seen.append(step_of(optimizer, model(*batch)))
        seen.append(torch.tensor(float(sum(each.grad is not None for each in model.parameters()))))
    return seen


def two_views(model: nn.Module, batch: Batch) -> list[Tensor]:
    """The model is called twice before backward, and once without gradients between (R-Drop, self-distillation)."""
    x, labels = batch
    optimizer, seen = sgd(model), []
    for _ in range(3):
        first = model(x, labels)
        with torch.no_grad():
            target = model(x.flip(-1), labels)
        second = model(x + 0.1 * torch.randn_like(x), labels)
        loss = first + second + (first - second).square() + (first - target).square()
        seen.append(step_of(optimizer, loss))
    return seen


def kept_graphs(model: nn.Module, batch: Batch) -> list[Tensor]:
    """One forward pass, several backward passes through it, gradients of chosen weights between (PCGrad)."""
    optimizer, seen = sgd(model), []
    for _ in range(2):
        optimizer.zero_grad()
        one, other = model(*batch)
        weights = list(model.parameters())
        firsts = torch.autograd.grad(one, weights, retain_graph=True, allow_unused=True)
        other.backward(retain_graph=True)
        with torch.no_grad():
            for each, first in zip(weights, firsts, strict=True):
                if first is None or each.grad is None:
                    continue
                dot = (first * each.grad).sum()
                each.grad += first - torch.clamp(dot, max=0) / (first.square().sum() + 1e-6) * each.grad
        one.backward(inputs=list(model.heads.parameters()))
        optimizer.step()
        seen += [one.detach(), other.detach()]
    return seen


def adversarial(model: nn.Module, batch: Batch) -> list[Tensor]:
    """Training on what a step along the input's gradient makes of the input (FGSM); weights take no gradient of it."""
    x, labels = batch
    optimizer, seen = sgd(model), []
    for _ in range(2):
        given = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(model(given, labels), given)
        seen.append(gradient)
        seen.append(step_of(optimizer, model((x + 0.1 * gradient.sign()).detach(), labels)))
    return seen


def restored(model: nn.Module, batch: Batch) -> list[Tensor]:
    """Steps, back to what was saved of weights and optimizer, steps again; hooks on both sides of the state dict."""
    optimizer, seen, called = torch.optim.AdamW(model.parameters(), 0.01, eps=1e-3), [], []
    handles = [
        model.register_state_dict_post_hook(lambda *_: called.append("saved")),
        model.register_load_state_dict_pre_hook(lambda *_: called.append("loads")),
        model.register_load_state_dict_post_hook(lambda *_: called.append("loaded")),
    ]
    seen.append(step_of(optimizer, model(*batch)))
    saved = {name: each.clone() for name, each in model.state_dict().items()}, copy.deepcopy(optimizer.state_dict())
    seen.append(step_of(optimizer, model(*batch)))
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    seen += [step_of(optimizer, model(*batch)) for _ in range(2)]
    for handle in handles:
        handle.remove()
    return [*seen, torch.tensor(float(len(called)))]


def offloaded(model: nn.Module, batch: Batch) -> list[Tensor]:
    """What autograd saves is packed by a hook of the program, and kept elsewhere."""
    optimizer, seen = sgd(model), []
    for _ in range(3):
        with torch.autograd.graph.saved_tensors_hooks(lambda held: held.clone(), lambda held: held):
            loss = model(*batch)
        seen.append(step_of(optimizer, loss))
    with torch.autograd.graph.save_on_cpu():
        seen.append(step_of(optimizer, model(*batch)))
    return seen


def uneven(model: nn.Module, batch: Batch) -> list[Tensor]:
    """Gradients summed over passes of which the last brings fewer rows, by their number; none are set to zero."""
    optimizer, seen = sgd(model), []
    for _ in range(2):
        optimizer.zero_grad(set_to_none=False)
        for rows in (8, 8, 4):
            loss = model(*(each[:rows] for each in batch)) * rows / 20
            loss.backward()
            seen.append(loss.detach())
        optimizer.step()
    return seen


def resized(model: nn.Module, batch: Batch) -> list[Tensor]:
    """Images of several sizes, not all of them the planned one."""
    pixels, labels = batch
    optimizer, seen = sgd(model), []
    for size in (16, 8, 16):
        small = f.interpolate(pixels, (size, size), mode="bilinear", align_corners=False)
        seen.append(step_of(optimizer, model(small, labels)))
    return seen


def mixed_up(model: nn.Module, batch: Batch) -> list[Tensor]:
    """Pairs of samples mixed with their labels; the loss of two labels is outside of the model, on what it returns."""
    (x,) = batch
    labels = torch.arange(len(x)) % 4
    optimizer, seen = sgd(model), []
    for step in range(2):
        share, other = 0.3 + 0.2 * step, labels.roll(1)
        found = model(share * x + (1 - share) * x.roll(1, 0))
        scores, features = found["scores"], found["features"]
        one, two = (_beside(scores, each) for each in (labels, other))
        loss = share * f.cross_entropy(scores, one) + (1 - share) * f.cross_entropy(scores, two)
        seen.append(step_of(optimizer, loss + 0.01 * features.square().mean()))
    return seen


def _beside(made: Tensor, tensor: Tensor) -> Tensor:
    """A tensor as torch wants it beside what a model returns."""
    return distribute_tensor(tensor, made.device_mesh) if isinstance(made, DTensor) else tensor


def searched(model: nn.Module, batch: Batch) -> list[Tensor]:
    """A search of the rate: trials from the same weights, the best kept; evaluation in inference mode between."""
    start = {name: each.clone() for name, each in model.state_dict().items()}
    seen: list[Tensor] = []
    for rate in (0.01, 0.1, 0.03):
        model.load_state_dict(start)
        optimizer = torch.optim.SGD(model.parameters(), rate, nesterov=True, momentum=0.9)
        step_of(optimizer, model(*batch))
        model.eval()
        with torch.inference_mode():
            seen.append(model(*batch).clone())
        model.train()
    model(*batch).backward()
    return seen


def compiled_pieces(model: nn.Module, batch: Batch) -> list[Tensor]:
    """Blocks that are compiled each by itself, in place."""
    for module in model.modules():
        if isinstance(module, Block):
            module.compile(backend="eager")
    optimizer = sgd(model)
    return [step_of(optimizer, model(*batch)) for _ in range(2)]


def _classified() -> tuple[nn.Module, Batch]:
    return Classifier(), labelled_rows()


def _imaged() -> tuple[nn.Module, Batch]:
    return Imaged(), (torch.randn(4, 3, 16, 16), torch.randint(4, (4,)))


LOOPS: dict[str, tuple[Make, Loop]] = {
    "averaged loop": (_classified, updates.averaged),
    "copied loop": (_classified, updates.copied),
    "sharpness loop": (_classified, sharpness),
    "clipped loop": (_classified, updates.clipped_groups),
    "schedule-free loop": (_classified, updates.schedule_free),
    "thawed loop": (_classified, thawed),
    "in-backward loop": (_classified, updates.in_backward),
    "centred loop": (_classified, updates.centred),
    "two-view loop": (_classified, two_views),
    "kept-graph loop": (lambda: (Views(), labelled_rows()), kept_graphs),
    "adversarial loop": (_classified, adversarial),
    "restored loop": (_classified, restored),
    "look-ahead loop": (_classified, updates.looked_ahead),
    "orthogonal loop": (_classified, updates.orthogonal),
    "vector loop": (_classified, updates.as_vector),
    "offloaded loop": (_classified, offloaded),
    "uneven loop": (_classified, uneven),
    "resized loop": (_imaged, resized),
    "mixed-up loop": (lambda: (Scorer(), labelled_rows()[:1]), mixed_up),
    "searched loop": (_imaged, searched),
    "compiled loop": (_classified, compiled_pieces),
    "accumulated loop": (_classified, updates.accumulated),
    **{f"{name} loop": (_classified, loop) for name, loop in by_hand.BY_HAND.items()},
}
