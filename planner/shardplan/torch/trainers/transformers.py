"""The `Trainer` of Hugging Face's transformers for models under a plan."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree
from transformers import Trainer, TrainingArguments

from shardplan.errors import ShardplanError, error
from shardplan.plan.types import Plan
from shardplan.torch.applied_plan import is_parallel
from shardplan.torch.eager.parallelize import parallelize
from shardplan.torch.launch import mesh
from shardplan.torch.placements import whole_of
from shardplan.torch.state_dicts import full_state_dict
from shardplan.torch.trainers.accelerate import PlannedAccelerator


class PlannedTrainer(Trainer):  # type: ignore[misc]
    """A `Trainer` that trains `model` under `plan`; all other arguments are those of `Trainer`.

    `per_device_train_batch_size` is the batch of the plan, all of it: every process reads the whole batch, and the
    model takes its part. Saved models are whole, as `from_pretrained` reads them.
    """

    def __init__(self, model: nn.Module, args: TrainingArguments, *others: Any, plan: Plan, **asked: Any) -> None:
        device = args.device.type  # looking at it joins the process group
        if not is_parallel(model):
            parallelize(model, plan, mesh(plan, device))
        args.save_only_model = True  # what the Trainer would write of an optimizer is one process's part
        args.average_tokens_across_devices = False  # every process counts those of the whole batch
        super().__init__(model, args, *others, **asked)

    def create_accelerator_and_postprocess(self) -> None:
        """The accelerator that the arguments ask for, for models under a plan."""
        super().create_accelerator_and_postprocess()
        self.accelerator.__class__ = PlannedAccelerator

    def get_total_train_batch_size(self, args: TrainingArguments) -> int:
        """Rows of a step."""
        return int(args.train_batch_size * args.gradient_accumulation_steps)

    def train(self, resume_from_checkpoint: str | bool | None = None, *others: Any, **asked: Any) -> Any:
        """As `Trainer.train`, from the beginning. Raises `ShardplanError` (`cannot-resume`)."""
        if resume_from_checkpoint:
            hint = "load weights with shardplan.torch.load_ or load_checkpoint before, and train without it"
            raise ShardplanError(error("cannot-resume", "the Trainer cannot resume a model under a plan", hint=hint))
        return super().train(None, *others, **asked)

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """The loss is one number for all processes, and so is what it is divided by."""
        items = int(num_items_in_batch) if isinstance(num_items_in_batch, Tensor) else num_items_in_batch
        return whole_of(super().training_step(model, inputs, items))

    def prediction_step(self, *args: Any, **kwargs: Any) -> Any:
        """What is predicted is whole."""
        return pytree.tree_map(whole_of, super().prediction_step(*args, **kwargs))

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the whole model, as `from_pretrained` reads it. All processes have to call it."""
        folder = self.args.output_dir if output_dir is None else output_dir
        whole = full_state_dict(self.model, rank=0)
        if self.args.should_save:
            self.model.save_pretrained(folder, state_dict=whole)
            if self.processing_class is not None:
                self.processing_class.save_pretrained(folder)
