"""`shardplan verify [MODEL] PLAN`: run the plan on simulated devices, compare every value with the model run whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from shardplan.errors import Attempts, Diagnostic
from shardplan.text_files import in_shell, is_file
from shardplan.verbs.asking import SIZES, budget_option, request_options, seed_option
from shardplan.verbs.inputs import load_model, parse_sizes
from shardplan.verbs.numbers import FiniteRange
from shardplan.verbs.session import EXIT_DONE, EXIT_NO, Session, option, verb

if TYPE_CHECKING:
    from shardplan.model.types import Model
    from shardplan.plan.types import Plan
    from shardplan.program.machine.run import Ran, Report
    from shardplan.program.types import Array

_SHOWN = 3


@click.command(short_help="Run a plan on simulated devices, compare every value.")
@click.argument("files", nargs=-1, required=True, metavar="[MODEL] PLAN", type=click.Path(path_type=str))
@click.option(
    "--shrink", is_flag=True, help="Verify a scaled-down model: fewer layers, smaller dims, the same strategies."
)
@option(
    "--rtol",
    metavar="SHARE",
    type=FiniteRange(min=0, min_open=True),
    help="Largest relative difference that counts as rounding.  [default: 1e-5; 1e-4 with operators of com.microsoft]",
)
@seed_option("Seed of the inputs, and of weights that the model lacks.")
@request_options(*SIZES)
@budget_option
@verb
def verify(
    session: Session,
    /,
    files: tuple[str, ...],
    rtol: float | None,
    seed: int,
    dims: tuple[str, ...],
    trips: tuple[str, ...],
    pads: tuple[str, ...],
    *,
    shrink: bool,
) -> int:
    """Run PLAN for MODEL on simulated devices, in double precision, and compare every value with the model run whole.

    MODEL is by default the model that the plan records. Weights are its own where its file has them, else random, as
    are those that are zero throughout or not finite.
    Symbolic dims are bound as the plan says. Exits with 0 when the plan is about this model, all values are equal and
    all collectives move what the plan says, with 1 when not.
    """
    from shardplan.render.verify import show_verification, verification_document

    *given, plan = files
    if len(given) > 1:
        raise click.UsageError(f"there are {len(files)} files; shardplan verify takes a model and its plan")
    model, loaded, planned = _read(given, plan, dims, trips, pads)
    if (report := _declared(loaded, planned, rtol)) is None:
        report, loaded = _run(session, model, loaded, planned, rtol, seed, shrink=shrink)
    session.finish(
        verification_document(report, loaded, shrunk=shrink),
        lambda console: show_verification(console, report, loaded, shrunk=shrink),
    )
    return EXIT_DONE if report.verified else EXIT_NO


def _declared(loaded: Model, planned: Plan, rtol: float | None) -> Report | None:
    """The report of a plan that says of its model what is not so; None where there is nothing such, or another model
    altogether, which running it refuses."""
    from shardplan.plan.recorded_request import is_of
    from shardplan.program.machine.pipeline import misdeclared
    from shardplan.program.machine.run import Report, usual_rtol

    if not is_of(planned, loaded):
        return None
    wrong = misdeclared(loaded, planned)
    return Report(planned.mesh.size, rtol or usual_rtol(loaded), misdeclared=wrong) if wrong else None


def _run(
    session: Session, model: str, loaded: Model, planned: Plan, rtol: float | None, seed: int, *, shrink: bool
) -> tuple[Report, Model]:
    """What running the plan, or a scaled-down one, found, and the model that was run."""
    from shardplan.program.machine.verify import verify_plan

    session.begin("scaling down" if shrink else "reading weights")
    values: dict[str, Array] = {}
    if shrink:
        from shardplan.program.shrink.shrink import shrink as scale_down

        loaded, planned = scale_down(loaded, planned)
    else:
        from shardplan.program.machine.values import stored_values, telling_weights

        stored = stored_values(model, loaded) if is_file(model) else {}
        values, hiding = telling_weights(loaded, stored)
        if hiding:
            session.say(_drawn(hiding))
    return verify_plan(loaded, planned, values, rtol=rtol, seed=seed, ran=_telling(session)), loaded


def _drawn(hiding: Sequence[str]) -> Diagnostic:
    """That random values take the place of weights, of which the first ones are named."""
    if len(hiding) == 1:
        of = f"'{hiding[0]}', which is zero throughout or not finite and would hide what is computed"
    else:
        shown = ", ".join(f"'{name}'" for name in hiding[:_SHOWN]) + (", \u2026" if len(hiding) > _SHOWN else "")
        of = f"{len(hiding):,} weights that are zero throughout or not finite and would hide what is computed ({shown})"
    return Diagnostic("note", "weights-drawn", f"random values take the place of {of}")


def _telling(session: Session) -> Ran:
    """What is called while the devices run: it says how far they are."""
    from shardplan.render.progress import Step

    tell = session.begin("running")
    return lambda done, total: tell(Step(f"{done:,} of {total:,} instructions", done, total - done))


def _command(model: str, plan: str) -> str:
    return f"shardplan verify {in_shell(model)} {in_shell(plan)}"


def _read(
    given: Sequence[str], plan: str, dims: tuple[str, ...], trips: tuple[str, ...], pads: tuple[str, ...]
) -> tuple[str, Model, Plan]:
    """The name of the model, `given` or as the plan records it, the model and the plan; the dims of the plan bind those
    of the model unless the command line says otherwise."""
    from shardplan.plan.file import read_plan
    from shardplan.study.freshness import recorded_model

    attempt = Attempts()
    sizes = attempt(lambda: parse_sizes(dims, trips, pads))
    planned = attempt(lambda: read_plan(plan))
    name = given[0] if given else None
    if name is None and planned is not None:
        name = attempt(lambda: recorded_model(planned, plan, lambda model: _command(model, plan)))
    loaded = None
    if name is not None and sizes is not None:
        bound = planned.model.get("dims", {}) if planned is not None else {}
        loaded = attempt(lambda: load_model(name, {**bound, **sizes}))  # type: ignore[dict-item]
    attempt.finish()
    assert name is not None
    assert loaded is not None
    assert planned is not None
    return name, loaded, planned
