"""`shardplan price MODEL --tp 8 --pp 4 --dp 16`: memory and time of exactly that configuration, and whether it fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from shardplan.errors import Attempts, ShardplanError, error
from shardplan.verbs.asking import DRAWS, ask, budget_option, request_options
from shardplan.verbs.session import EXIT_DONE, EXIT_NO, Session, Verb, verb


def _ways(name: str, field: str, text: str) -> Callable[[Verb], Verb]:
    return click.option(f"--{name}", field, type=int, default=1, show_default=False, metavar="N", help=text)


@click.command(short_help="Say what a parallel configuration takes, and whether it fits.")
@click.argument("model", required=False, type=click.Path(path_type=str))
@click.option("--model", "model_option", metavar="MODEL", help="The same as the argument.")
@request_options("cluster", "dims", "optimizer", "memory_limit")
@_ways("tp", "tensor", "Tensor-parallel ways.")
@_ways("pp", "pipeline", "Pipeline stages.")
@click.option("--dp", "data", type=int, metavar="N", help="Data-parallel ways.  [default: 1, or what --gpus leaves]")
@_ways("cp", "context", "Context-parallel ways: the sequence is cut.")
@_ways("ep", "expert", "Of the data-parallel ranks, so many hold different experts.")
@click.option(
    "--etp",
    "expert_tensor",
    type=int,
    metavar="N",
    help="Tensor-parallel ways of experts: those of --tp, or "
    "1 for whole ones, which --ep then counts over --tp and --dp.  [default: --tp]",
)
@_ways("vp", "virtual", "Pieces of the model on each stage (interleaved schedule).")
@click.option("--gpus", type=int, metavar="N", help="All devices: --dp is what the others leave of them.")
@click.option("--zero", type=int, default=0, metavar="0|1|3", help="What data-parallel ranks shard: nothing, optimizer "
        "state (Megatron's distributed optimizer), parameters too (FSDP).")  # fmt: skip
@click.option("--sequence-parallel", "sequence", is_flag=True, help="Cut the hidden state by sequence over --tp.")
@click.option("--micro-batch", type=int, default=1, metavar="N", help="Rows of a microbatch of one rank.")
@click.option(
    "--global-batch",
    type=int,
    metavar="N",
    help="Rows of a step.  [default: the model's, or one microbatch each; with --vp as many as --pp]",
)
@click.option(
    "--recompute",
    metavar="SCHEME",
    default="none",
    help="Activations to recompute: none, selective (unfused attention), alternate (all of a layer but attention and "
    "every other product, torchtitan's selective by operator), full (all of every layer); of layers as a whole block:N "
    "(the first N of a stage), every:N (each N-th), uniform:N (all, in chunks of N); of modules, with commas between: "
    "core_attn, layernorm, mlp, moe, moe_act, shared_experts, mla_up_proj (Megatron's --recompute-modules).",
)
@click.option(
    "--precision",
    type=click.Choice(["fp8", "mxfp8", "nvfp4"]),
    help="Type of products with weights inside of layers, as Transformer Engine casts.  [default: the model's]",
)
@click.option("--fused-loss", is_flag=True, help="The loss holds logits in the model's type (a fused cross entropy), "
        "not in fp32.")  # fmt: skip
@click.option("--overlap-exchange", is_flag=True, help="Experts' tokens are exchanged beside the compute of another "
        "microbatch.")  # fmt: skip
@click.option("--eager", is_flag=True, help="The program runs as it is written (eager PyTorch): norms, rotations and "
        "gates are many kernels.")  # fmt: skip
@click.option("--grad-dtype", type=click.Choice(["fp32", "bf16"]), default="fp32", show_default=True, help="Type in "
        "which --zero 0 and 1 accumulate gradients of 16-bit weights.")  # fmt: skip
@click.option(
    "--robust",
    type=DRAWS,
    default=0,
    metavar="N",
    help="Price it on N perturbed profiles too, whose constants are drawn at random within their spread.",
)
@click.option("--best/--no-best", default=True, help="Set the best plan on as many devices beside it.")
@budget_option
@verb
def price(session: Session, /, **given: Any) -> int:
    """Say what MODEL takes under exactly this configuration, in the words of Megatron and FSDP.

    Memory by category of the fullest device, and the step: compute, exposed communication, bubble. What the
    configuration leaves open is optimised. Exits with 1 when it does not fit.
    """
    from shardplan.render.price import price_document, show_price
    from shardplan.study import price as study
    from shardplan.study.recompute import recompute_of

    attempt = Attempts()
    name = attempt(lambda: _named(given["model"], given.pop("model_option")))
    request, faults = ask({**given, "model": name or ""})
    attempt.problems += (fault for found in faults.values() for fault in found)
    parallelism = attempt(lambda: _parallelism(given))
    attempt(lambda: recompute_of(given["recompute"]))
    batch = study.Batch(given["global_batch"], given["micro_batch"])
    attempt.finish()
    assert parallelism is not None
    on_progress = session.begin("pricing")
    told = study.price_as_asked(
        request,
        parallelism,
        batch,
        given["recompute"],
        given["precision"] or "",
        compare=given["best"],
        fused_loss=given["fused_loss"],
        overlap_exchange=given["overlap_exchange"],
        eager=given["eager"],
        grad_dtype=given["grad_dtype"],
        robust=given["robust"],
        on_progress=on_progress,
    )
    session.say_all(told.warnings)
    session.finish(price_document(told), lambda console: show_price(console, told))
    return EXIT_DONE if told.priced.fits else EXIT_NO


def _named(argument: str | None, option_: str | None) -> str:
    if (argument is None) == (option_ is None):
        summary = "no MODEL is given" if argument is None else "MODEL is given twice"
        hint = "shardplan price MODEL --tp 8 --dp 4; an ONNX file, transformer:llama3-8b, or a config.json"
        raise ShardplanError(error("bad-argument", summary, hint=hint))
    return argument or option_ or ""


def _parallelism(given: dict[str, Any]) -> Any:
    from shardplan.planning.parallelism import Parallelism, bad

    ways = {key: given[key] for key in ("tensor", "pipeline", "context", "expert", "virtual", "zero", "sequence")}
    if given["expert_tensor"] is not None and given["expert_tensor"] < 1:
        raise ShardplanError(bad(f"--etp is {given['expert_tensor']}", "--etp is a whole number of at least 1"))
    ways["expert_tensor"] = given["expert_tensor"] or 0
    data, gpus = given["data"], given["gpus"]
    others = max(1, ways["tensor"]) * max(1, ways["pipeline"]) * max(1, ways["context"])
    if gpus is not None and gpus != (data or gpus // others) * others:
        wrong = f"is not {data} x {others}" if data else f"is no multiple of {others}"
        summary = f"--gpus {gpus} {wrong}"
        raise ShardplanError(bad(summary, "--gpus is the product of --tp, --pp, --cp and --dp"))
    return Parallelism(data=data if data is not None else 1 if gpus is None else gpus // others, **ways)
