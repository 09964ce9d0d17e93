"""The Python API: `shardplan.make_plan`, `save`, `load`, `price`, `check` and `robustness`, for programs and notebooks.

Arguments have the same names and defaults as on the command line: they are the fields of `shardplan.request.Request`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

from shardplan.errors import Diagnostic, OnWarning, ShardplanError, error, warn
from shardplan.plan.file import read_signed, read_whole, write_plan
from shardplan.plan.format.digest import edited
from shardplan.plan.legality import faults as illegal
from shardplan.plan.types import Plan
from shardplan.request import Request, request_of

if TYPE_CHECKING:
    from shardplan.graph.precision import PrecisionName
    from shardplan.model.types import Model
    from shardplan.study.check import Verdict
    from shardplan.study.price import PricedConfiguration
    from shardplan.study.sensitivity import Robustness

P = ParamSpec("P")


def _asking(_request: Callable[P, Request]) -> Callable[[Callable[[Request, OnWarning], Plan]], Callable[P, Plan]]:
    """Lets a function of a request take the request's fields; faults of fields and of inputs are raised together."""

    def taking(function: Callable[[Request, OnWarning], Plan]) -> Callable[P, Plan]:
        signature = inspect.signature(Request)

        @functools.wraps(function)
        def with_fields(*given: P.args, **named: P.kwargs) -> Plan:
            heard: list[Diagnostic] = []
            request, faults = request_of(signature.bind(*given, **named).arguments)
            try:
                if faults:
                    from shardplan.study.instance import read

                    read(request, faults)
                return function(request, heard.append)
            finally:
                for diagnostic in heard:
                    if diagnostic.code != "start":  # good news
                        warn(str(diagnostic))

        with_fields.__signature__ = signature.replace(return_annotation="Plan")  # type: ignore[attr-defined]
        return with_fields

    return taking


@_asking(Request)
def make_plan(request: Request, on_warning: OnWarning) -> Plan:
    """The fastest plan for `model` that fits in memory, as `shardplan solve` finds it; nothing is written.

    >>> plan = shardplan.make_plan("model.onnx", "4x4", dims={"batch": 32}, pins=["*.up.weight=[null, gpu]"])
    >>> shardplan.save(plan, "plans/model.4x4.plan.json")

    `model`: an ONNX file, a description such as `transformer:llama3-8b,batch=16`, or what either was read to.
    `mesh`: sizes, outermost axis first (`4x4`), or names (`machine=4,gpu=4`), or `auto` for the best logical mesh over
    `devices`; the profile's own where it is None. `cluster`: name of a shipped profile, or a YAML file. `dims`: sizes
    of symbolic dims; `trips`: trip counts of loops. `memory_limit`: what a device may use, in bytes or as `"40 GiB"`.
    `stages`: a pipeline of so many stages, `"auto"`, or cut as another plan; `schedule` is its schedule. `constraints`:
    YAML files, the same as mappings, or plans whose inputs and weights stay where they are; `pins`: single ones.
    `start`: a plan, or its file, from which the search starts: no result is slower than its decisions are here. All
    arguments are fields of `shardplan.request.Request`. Warnings are given as Python's `UserWarning`.

    Raises `shardplan.errors.ShardplanError`, whose `diagnostics` say all that is wrong with what was given;
    `InfeasibleError` when it is proven that no plan fits, `LimitError` when `time_limit` ends the search without one.
    """
    from shardplan.study.solve import plan

    return plan(request, on_warning=on_warning)


def price(
    model: str | Path | Model,
    *,
    tp: int = 1,
    pp: int = 1,
    dp: int = 1,
    cp: int = 1,
    ep: int = 1,
    vp: int = 1,
    zero: int = 0,
    sequence_parallel: bool = False,
    micro_batch: int = 1,
    global_batch: int | None = None,
    recompute: str = "none",
    precision: PrecisionName = "",
    etp: int | None = None,
    fused_loss: bool = False,
    overlap_exchange: bool = False,
    eager: bool = False,
    grad_dtype: str = "fp32",
    **asked: Any,
) -> PricedConfiguration:
    """Memory and time of `model` under exactly this configuration, as from `shardplan price`: `fits`, `peak` (memory of
    the fullest device by category), `spent` (compute, exposed communication, bubble) and `plan.summary.step_ns`.

    >>> shardplan.price("transformer:llama3-8b", dp=8, zero=3, global_batch=16).fits
    True

    `recompute`: `none`, `selective`, `alternate`, `full`, `block:4`, `every:2`, `uniform:2` or modules as
    in `moe_act,layernorm`, as `--recompute`.
    `precision`: `fp8`, `mxfp8` or `nvfp4` for products with weights inside of layers. `etp`: tensor-parallel degree of
    experts, 1 for whole experts, which `ep` then spreads over `tp` and `dp`; None for the degree `tp`. `fused_loss`:
    the loss holds no logits in fp32. `overlap_exchange`: experts' tokens are exchanged beside another microbatch's
    compute. `eager`: the program runs as it is written, its norms, rotations and gates as many kernels.
    `grad_dtype`: `fp32`, or `bf16` where `zero` 0 and 1 accumulate gradients in the type of the weights. `asked`:
    `cluster`, `dims`, `optimizer` and `memory_limit`, as in `make_plan`.

    Raises `ShardplanError` (`bad-parallelism`) for sizes that do not divide.
    """
    from shardplan.planning.parallelism import Parallelism
    from shardplan.study.price import Batch, price_as_asked

    ways = Parallelism(tp, pp, dp, cp, ep, vp, zero, sequence_parallel, etp or 0)
    request = Request(model, **asked)
    batch, options = Batch(global_batch, micro_batch), (recompute, precision)
    return price_as_asked(
        request,
        ways,
        batch,
        *options,
        compare=False,
        fused_loss=fused_loss,
        overlap_exchange=overlap_exchange,
        eager=eager,
        grad_dtype=grad_dtype,
    ).priced


def save(plan: Plan, path: str | Path) -> bool:
    """Writes `plan` to the file at `path` and creates its folders; False if the file already has exactly this content.

    Nobody ever reads half a plan: the file is replaced when the text is complete. Raises `ShardplanError`
    (`unwritable-output`; `output-not-a-plan` rather than replace a file that is not a plan).
    """
    return write_plan(plan, path)


def load(
    path: str | Path,
    verify: bool = False,
    *,
    model: str | Path | None = None,
    allowed_signers: str | Path | None = None,
) -> Plan:
    """The plan in the file at `path`.

    `verify`: refuse a plan that was edited since it was written, by the digest of its content, or whose decisions are
    not legal. `model`: also refuse one with a field that does not follow from its decisions for this model, as
    `shardplan check` does; that needs onnx and about a second. `allowed_signers`: also refuse one without a signature
    of somebody in this file, as verified by OpenSSH's ssh-keygen; the file is in its format.

    Raises `ShardplanError` (`unreadable-plan`, `not-a-plan`, `damaged-plan`; `edited-plan`, `invalid-plan`,
    `stale-plan`; `unsigned-plan`, `no-ssh-keygen`, `unreadable-signers`).
    """
    found, plan = read_whole(path) if allowed_signers is None else read_signed(path, allowed_signers)
    if verify and (faults := [*edited(found), *illegal(plan)]):
        hint = "solve again, or take the file that was written"
        raise ShardplanError(error("edited-plan", faults[0], detail="\n".join(faults[1:]), hint=hint, file=str(path)))
    if model is not None:
        verdict = check(path, model=model)
        if verdict.status != "fresh":
            first, *rest = verdict.findings
            hint = verdict.repair.text
            raise ShardplanError(error(verdict.code, first, detail="\n".join(rest), hint=hint, file=str(path)))
    return plan


def check(
    path: str | Path, *, model: str | Path | None = None, cluster: str | None = None, resolve: bool = False
) -> Verdict:
    """The verdict of `shardplan check` on the plan in the file at `path`: `status` is `fresh`, or `findings` say why
    not.

    `model`, `cluster`: in place of those that the plan records. `resolve`: solve again, and compare. Raises
    `ShardplanError` if the plan or an input cannot be read.
    """
    from shardplan.study.check import check_file
    from shardplan.study.freshness import Given

    given = Given(None if model is None else str(model), cluster)
    return check_file(str(path), given, resolve=resolve)


def robustness(plan: Plan, model: str | Path | Model, draws: int) -> Robustness:
    """Sensitivity analysis of `plan`, made for `model`, under errors of the profile, as from `shardplan solve --robust
    DRAWS`.

    Raises `ShardplanError` for another model, and (`pipeline-plan`) for a pipeline.
    """
    from shardplan.study.instance import load_model_of, read, recorded_request
    from shardplan.study.sensitivity import robustness as study

    known = load_model_of(plan, "the plan", str(model)) if isinstance(model, str | Path) else model
    instance = read(recorded_request(plan, "the plan", known))
    return study(instance.model, instance.cluster, instance.options, plan, draws)
