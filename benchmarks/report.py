"""How large the reports of plans are, and how long a browser takes to open them.

    python benchmarks/report.py [--model MODEL MESH]
    python benchmarks/report.py --images docs/images

Prints a table: operators, moves, bytes of the page, CPU seconds to write it, wall seconds until a headless Chromium has
drawn it. `--images` takes all pictures of the README and docs/report.md instead, of the committed plans where they show
one.
"""

import argparse
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

import shardplan
from shardplan.plan.diff import diff_plans
from shardplan.plan.types import Plan
from shardplan.reports.page import page
from shardplan.reports.plan import plan_report
from shardplan.reports.studies import diff_report, sweep_report
from shardplan.study.engines import engine_of
from shardplan.study.sweep import all_combinations, sweep

ROOT = Path(__file__).parents[1]
MODELS = ROOT / "tests" / "models"
ASKED = (
    (str(MODELS / "lstm_lm.onnx"), "4x4"),
    (str(MODELS / "gpt2_small.onnx"), "4x4"),
    (str(MODELS / "llama3_8b.onnx"), "4x8"),
    ("transformer:llama3-70b", "8x8"),
)


def opened(browser: Browser, html: str, folder: Path) -> tuple[Page, float]:
    """A page with a report, and the seconds until it was drawn."""
    file = folder / "report.html"
    file.write_text(html, encoding="utf-8")
    tab = browser.new_page(viewport={"width": 1280, "height": 980})
    began = time.perf_counter()
    tab.goto(file.as_uri())
    tab.wait_for_selector("html[data-ready]")
    return tab, time.perf_counter() - began


def stacked(plan: Plan, times: int) -> Plan:
    """The operators, tensors and moves of a plan so many times over, each with a name of its own: larger than any model
    at hand."""

    def named(name: str, copy: int) -> str:
        return f"{name}.{copy}" if name else ""

    count = len(plan.operators)
    operators, tensors, moves = [], [], []
    for copy in range(times):
        operators += [
            replace(
                one,
                name=named(one.name, copy),
                module=named(one.module, copy),
                inputs=tuple(named(name, copy) for name in one.inputs),
                outputs=tuple(named(name, copy) for name in one.outputs),
            )
            for one in plan.operators
        ]
        tensors += [
            replace(one, name=named(one.name, copy), checkpoint=named(one.checkpoint, copy)) for one in plan.tensors
        ]
        moves += [
            replace(
                one,
                tensor=named(one.tensor, copy),
                reader=named(one.reader, copy),
                issue_after=named(one.issue_after, copy),
                wait_before=named(one.wait_before, copy),
                bucket=None if one.bucket is None else one.bucket + 10_000 * copy,
            )
            for one in plan.moves
        ]
    blocks = tuple(
        (
            tuple(named(path, copy) for copy in range(times) for path in paths),
            tuple(tuple(index + count * copy for index in indices) for copy in range(times) for indices in copies),
        )
        for paths, copies in plan.blocks
    )
    return replace(plan, operators=tuple(operators), tensors=tuple(tensors), moves=tuple(moves), blocks=blocks)


def measure(browser: Browser, asked: list[tuple[str, str]], folder: Path, *, own: bool) -> None:
    print("| plan | operators | moves | bytes of the page | CPU s to write | opens in |")
    print("|---|---|---|---|---|---|")
    for model, mesh, times in [*((model, mesh, 1) for model, mesh in asked), *([] if own else [(*asked[-1], 5)])]:
        plan = shardplan.make_plan(model, mesh)
        plan = stacked(plan, times) if times > 1 else plan
        began = time.process_time()
        html = page(plan_report(plan))
        spent = time.process_time() - began
        tab, seconds = opened(browser, html, folder)
        tab.close()
        sizes = f"{len(plan.operators):,} | {len(plan.moves):,} | {len(html):,} | {spent:.2f} | {seconds:.2f} s"
        print(f"| {plan.model['name']} {mesh}{f', {times} times' if times > 1 else ''} | {sizes} |", flush=True)


def pictures(browser: Browser, target: Path, folder: Path) -> None:
    gpt2, committed = str(MODELS / "gpt2_small.onnx"), "plans/gpt2_small.4x4.plan.json"
    plan, tight = shardplan.load(ROOT / committed), shardplan.make_plan(gpt2, "4x4", memory_limit="1.4GiB")
    staged = shardplan.make_plan(gpt2, "2x2", stages="2", microbatches=4)
    llama = plan_report(shardplan.load(ROOT / "plans/llama3_8b.4x8.plan.json"))
    request = shardplan.request.Request(gpt2)
    meshes = all_combinations(("h100-dgx", "a100-dgx"), ("1x4", "2x4"), (1,), ("none", "selective"), ("",))
    swept = sweep(request, meshes, engine_of("local"))
    unfold = (
        "[...document.querySelectorAll('details.segment')].find((one) => / ×/.test(one.textContent)).open = true;"
        "document.getElementById('model').scrollIntoView()"
    )
    diff = diff_report(plan, tight, (committed, "tight.plan.json"), diff_plans(plan, tight))
    shown = {
        "report": (plan_report(plan, committed), ""),
        "report-model": (llama, unfold),
        "report-pipeline": (plan_report(staged), ""),
        "report-diff": (diff, ""),
        "report-sweep": (sweep_report(swept), ""),
    }
    for name, (document, act) in shown.items():
        tab, _ = opened(browser, page(document), folder)
        if act:
            tab.evaluate(act)
        tab.wait_for_timeout(300)
        tab.screenshot(path=target / f"{name}.png")
        tab.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", nargs=2, action="append", metavar=("MODEL", "MESH"))
    parser.add_argument("--images", type=Path)
    given = parser.parse_args()
    with sync_playwright() as driver, tempfile.TemporaryDirectory() as folder:
        path = shutil.which("chromium") or shutil.which("google-chrome")
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        if given.images:
            return pictures(browser, given.images, Path(folder))
        return measure(browser, given.model or list(ASKED), Path(folder), own=bool(given.model))


if __name__ == "__main__":
    main()
