"""A program run once with its example, as an export runs it, and exports that give the answers of that run."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.utils import stateless
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from shardplan.torch.exported.untraceable import having
from shardplan.torch.planning.example_values import ExampleValues, numbers_in
from shardplan.torch.planning.program_caches import kept_out_of_caches
from shardplan.torch.rules.function_names import in_place

T = TypeVar("T")


def run_example(
    model: nn.Module, args: Any, kwargs: Mapping[str, Any], buffers: dict[str, Tensor] | None = None
) -> None:
    """Runs a program with its example; nothing of it is changed: it reads and changes `buffers`, which are copies, and
    hold afterwards what it has set in their place. A program that asks whether it is exported is told so, and Python's
    `max` and `min` of tensors are tensors, as they are in an export."""
    from torch._export.non_strict_utils import _override_builtin_ops  # there is no public way

    copies = copied_buffers(model) if buffers is None else buffers
    with (
        having(torch.compiler, "_is_compiling_flag", True),
        having(torch.compiler, "_is_exporting_flag", True),
        _override_builtin_ops(),
        torch.random.fork_rng(devices=[]),
        kept_out_of_caches(),
        stateless._reparametrize_module(model, copies),  # noqa: SLF001 - `functional_call`, without its checks
    ):
        model(*args, **kwargs)


def copied_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Copies of the buffers of a program by all their names, for a run with its example; shared ones stay one."""
    named = dict(model.named_buffers(remove_duplicate=False))
    copies = {id(buffer): buffer.clone() for buffer in named.values()}
    return {name: copies[id(buffer)] for name, buffer in named.items()}


def has_values(model: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether a program can be run with its example: nothing of both is on the meta device, or without values."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    owned = [*model.parameters(), *model.buffers()]
    return not any(each.is_meta or isinstance(each, FakeTensor) for each in (*tensors, *owned))


def with_own_numbers(export: Callable[[], T], model: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> T:
    """What `export` makes of a program whose branches and sizes depend on tensors that are the same in every run: that
    it makes itself (the times of a solver), or has in buffers that neither checkpoints have nor the program changes.
    Raises `LookupError` where they depend on what it is given, on other tensors of its own, or on what it draws."""
    buffers, stored = copied_buffers(model), model.state_dict()
    own = {name: buffer.clone() for name, buffer in buffers.items() if name not in stored}
    others = [buffer for name, buffer in buffers.items() if name not in own]
    answers = _Answers([*tree_leaves((args, kwargs)), *model.parameters(), *others])
    with _answered(model, answers):
        run_example(model, args, kwargs, buffers)
        if not all(torch.equal(buffer, buffers[name]) for name, buffer in own.items()):
            raise LookupError("the program changes a buffer that no checkpoint has")
        answers.example.is_example = False
        return export()


class _Answers(TorchFunctionMode):  # type: ignore[misc]
    """Context: numbers and conditions are told, of what does not depend on `given`."""

    def __init__(self, given: Sequence[Any]) -> None:
        super().__init__()
        self.example = ExampleValues(also_masks=False)
        self._given = {id(each): each for each in given}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        named = kwargs or {}
        given = self.example.with_numbers(func, args, named)
        if given is not None:
            self._check(numbers_in((args, tuple(named.values()))))
            args, named = given
        made = self.example.form(func, args, named)
        if made is not NotImplemented:
            self._check(tree_leaves((args, named)))
            return made
        if not self.example.is_example:
            return func(*args, **named)
        leaves, before = tree_leaves((args, named)), _generators()
        made = func(*args, **named)
        if self._depends(leaves) or _have_drawn(before, leaves):
            changed = args[:1] if in_place(func) or getattr(func, "__name__", "") == "__setitem__" else ()
            self._given |= {id(each): each for each in (*tree_leaves(made), *changed)}
        return made

    def _depends(self, leaves: Iterable[Any]) -> bool:
        return any(id(leaf) in self._given for leaf in leaves if isinstance(leaf, Tensor))

    def _check(self, leaves: Iterable[Any]) -> None:
        if self.example.is_example and self._depends(leaves):
            raise LookupError("a number depends on what the program is given")


def _generators() -> list[Tensor]:
    """The states of torch's own generators of random numbers."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else ())]


def _have_drawn(before: Sequence[Tensor], given: Iterable[Any]) -> bool:
    """Whether a call, which was `given` this, has drawn since the generators were as `before`, whatever its name."""
    moved = not all(map(torch.equal, before, _generators()))
    return moved or any(isinstance(each, torch.Generator) for each in given)


@contextlib.contextmanager
def _answered(model: nn.Module, answers: _Answers) -> Iterator[None]:
    """Context: the program asks `answers`."""
    own, forward = model.__dict__.get("forward"), model.forward

    @functools.wraps(forward)
    def told(*args: Any, **kwargs: Any) -> Any:
        answers.example.begin()
        with answers:
            return forward(*args, **kwargs)

    model.forward = told
    try:
        yield
    finally:
        del model.forward
        if own is not None:
            model.forward = own
