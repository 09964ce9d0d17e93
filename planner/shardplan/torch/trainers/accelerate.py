"""Hugging Face's accelerate: an `Accelerator` for models under a plan."""

from __future__ import annotations

from typing import Any

from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader

from shardplan.torch.applied_plan import applied_to
from shardplan.torch.placements import whole_of
from shardplan.torch.state_dicts import full_state_dict


class PlannedAccelerator(Accelerator):  # type: ignore[misc]
    """An `Accelerator` for models that `shardplan.torch.parallelize` has put under a plan.

    `prepare` wraps the model into nothing and gives every process whole batches, of which the model takes its part;
    optimizers are those over the model's parameters. Arguments are those of `Accelerator`.
    """

    def prepare_model(
        self, model: nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> nn.Module:
        """Autocast and compilation as asked for. Raises `ShardplanError` (`not-parallel`)."""
        del device_placement, evaluation_mode
        applied_to(model)
        return super().prepare_model(model, device_placement=False, evaluation_mode=True)

    def prepare_data_loader(
        self, data_loader: DataLoader, device_placement: bool | None = None, slice_fn_for_dispatch: Any = None
    ) -> DataLoader:
        """The same batches for every process, in the same order."""
        del slice_fn_for_dispatch
        if getattr(data_loader, "_is_accelerate_prepared", False):
            return data_loader
        made = prepare_data_loader(
            data_loader, self.device, num_processes=1, process_index=0,
            put_on_device=self.device_placement if device_placement is None else device_placement,
            rng_types=self.rng_types.copy(), use_seedable_sampler=self.use_seedable_sampler,
            data_seed=self.dataloader_config.data_seed, non_blocking=self.non_blocking,
        )  # fmt: skip
        self._dataloaders.append(made)
        return made

    def gather(self, tensor: Any) -> Any:
        """What every process has seen is everything; DTensors become whole."""
        return pytree.tree_map(whole_of, tensor)

    def get_state_dict(self, model: nn.Module, unwrap: bool = True) -> dict[str, Tensor]:
        """Whole tensors under the names of the module. All processes have to call it."""
        inner: nn.Module = self.unwrap_model(model) if unwrap else model
        found: dict[str, Tensor] = full_state_dict(inner)
        return found
