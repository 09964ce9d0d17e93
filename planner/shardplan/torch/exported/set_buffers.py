"""Buffers that inner modules set to other tensors, as graphs have it: torch writes only those of the outermost module
back, and drops the others in silence."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Container, Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import register_module_buffer_registration_hook

from shardplan.torch.exported.untraceable import untraceable

Place = tuple[nn.Module, str]
"""A module, and the name of a buffer in it."""


@contextlib.contextmanager
def writing_set_buffers(model: nn.Module) -> Iterator[None]:
    """Context: where `model` ends, buffers that its inner modules have set take these values. Raises `ShardplanError`
    (`cannot-export`) where `model` runs and a buffer cannot."""
    first: dict[Place, Tensor] = {}
    shared = _shared(model)
    own, forward = model.__dict__.get("forward"), model.forward

    def note(module: nn.Module, name: str, value: Any) -> None:
        held = module._buffers.get(name)  # noqa: SLF001 - as torch has them
        if module is not model and held is not None and held is not value:
            first.setdefault((module, name), held)

    @functools.wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        first.clear()
        made = forward(*args, **kwargs)
        for place, buffer in first.items():
            _write(model, shared, place, buffer)
        return made

    model.forward = run
    hook = register_module_buffer_registration_hook(note)
    try:
        yield
    finally:
        hook.remove()
        del model.forward
        if own is not None:
            model.forward = own


def _write(model: nn.Module, shared: Container[Place], place: Place, buffer: Tensor) -> None:
    """`buffer`, which was at `place` when `model` began, becomes what has been set in its place."""
    module, name = place
    value = module._buffers.get(name)  # noqa: SLF001 - as torch has them
    is_alike = value is not None and value.shape == buffer.shape and value.dtype == buffer.dtype
    is_stored = name not in module._non_persistent_buffers_set  # noqa: SLF001 - there is no public name
    if is_alike and place not in shared:
        buffer.copy_(value.detach())
    elif is_alike or is_stored:
        path = next(path for path, each in model.named_modules() if each is module)
        what = "a buffer that several modules have" if is_alike else "to another shape or dtype"
        raise untraceable(f"it sets '{path}.{name}', {what}", "change it in place (buffer.copy_(...))")


def _shared(model: nn.Module) -> set[Place]:
    """Where buffers are that several modules have."""
    places = [(each, name) for each in model.modules() for name in each._buffers]  # noqa: SLF001 - as torch has them
    times = Counter(id(module._buffers[name]) for module, name in places)  # noqa: SLF001
    return {(module, name) for module, name in places if times[id(module._buffers[name])] > 1}  # noqa: SLF001
