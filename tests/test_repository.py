"""The repository keeps its own promises: documents, the wheel, the limits of the house."""

import ast
import importlib
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pytest
import yaml
from example_plans import MESH, example_plan

from shardplan.plan.file import dumps
from shardplan.plan.orientation import checkpoint_layout

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "planner").rglob("*.py"))
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
MOST_LINES, MOST_FUNCTION_LINES = 450, 60


def commands() -> dict[str, str]:
    """The README's commands, as `.ci/run` finds them."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return dict(re.findall(r"<!-- command: (\w+) -->\n```\w*\n(.*?)\n```", text, re.DOTALL))


def test_ci_runs_the_commands_of_the_readme():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert sorted(commands()) == ["plan", "test"]
    assert re.findall(r"^(?:check )?run_readme_command (\w+)$", script, re.MULTILINE) == ["plan", "test"]
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


def test_the_model_that_the_readme_plans_is_in_the_checkout():
    model = re.search(r"shardplan solve (\S+)", commands()["plan"])
    assert model
    assert (ROOT / model[1]).is_file()


def test_every_package_but_the_adapters_is_kept_from_frameworks():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = [
        one for one in settings["tool"]["importlinter"]["contracts"] if one.get("forbidden_modules", [""])[0] == "flax"
    ]
    folder = ROOT / "planner" / "shardplan"
    packages = {path.parent.name for path in folder.glob("*/__init__.py")} - {"torch", "jax"}
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__", "__main__"}
    assert contract["source_modules"] == sorted(f"shardplan.{name}" for name in packages | modules)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(document: Path):
    links = re.findall(r"\]\((?!https?://|#)([^)#\s]+)", document.read_text(encoding="utf-8"))
    missing = [link for link in links if not (document.parent / link).exists()]
    assert missing == []


def anchors(document: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_anchors_in_the_documents_exist(document: Path):
    links = re.findall(r"\]\((?!https?://)([^)#\s]*)#([^)\s]+)\)", document.read_text(encoding="utf-8"))
    pages = [(document.parent / page if page else document, anchor) for page, anchor in links]
    assert [(page.name, anchor) for page, anchor in pages if page.suffix == ".md" and anchor not in anchors(page)] == []


def test_every_page_is_in_the_navigation_of_the_site():
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    named = [page for section in site["nav"] for pages in section.values() for page in pages]
    docs = ROOT / "docs"
    assert sorted(named) == sorted(str(page.relative_to(docs)) for page in docs.rglob("*.md"))


def test_verbs_in_the_documents_exist():
    from shardplan.cli import cli

    text = "\n".join(document.read_text(encoding="utf-8") for document in DOCUMENTS)
    assert set(re.findall(r"`shardplan ([a-z]+)", text)) <= set(cli.commands)


def test_the_page_on_architecture_names_what_is_there():
    """Every package and module of the top has its line, every function of the road and every file to touch exists."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    top = ROOT / "planner" / "shardplan"
    parts = dict(part.split("\n", 1) for part in f"\n{text}".split("\n## ")[1:])
    road, costs = parts["The road of one request"], parts["What a change costs"]
    packages = re.findall(r"^\|.*\|$", text.split("\n## ")[0], re.MULTILINE)
    named = {name for row in packages for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    here = {path.stem for path in top.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert named == here - {"__init__", "__main__"}
    for module, function in re.findall(r"`((?:\w+\.)+)(\w+)`", road):
        assert callable(getattr(importlib.import_module(f"shardplan.{module[:-1]}"), function))
    files = re.findall(r"`(\w+/[\w/]+\.py)`", costs)
    assert len(files) > 8
    assert [file for file in files if not (top / file).is_file()] == []


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "planner" / "shardplan")))
def test_files_and_functions_stay_small_and_the_library_prints_nothing(source: Path):
    text = source.read_text(encoding="utf-8")
    assert text.count("\n") <= MOST_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno - node.lineno < MOST_FUNCTION_LINES, node.name
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id != "print"


def codes_of(source: Path):
    """The codes of diagnostics that a module makes, without what is put into them."""
    for call in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if not isinstance(call, ast.Call):
            continue
        place = {"error": 0, "warning": 0, "Diagnostic": 1}.get(getattr(call.func, "id", ""))
        given = call.args[place] if place is not None and place < len(call.args) else None
        parts = given.values if isinstance(given, ast.JoinedStr) else [given]
        yield from (part.value for part in parts if isinstance(part, ast.Constant))


def test_codes_of_diagnostics_are_small_letters_digits_and_hyphens():
    found = {code for source in SOURCES for code in codes_of(source)}
    assert len(found) > 200
    assert [code for code in sorted(found) if not re.fullmatch("[a-z0-9-]+", code)] == []


def test_what_benchmarks_import_from_the_repository_is_there():
    """A benchmark runs seldom: a name that it imports and that was changed would be missed late."""
    folders = [ROOT / "planner", ROOT / "tests" / "support", ROOT / "benchmarks"]
    missing = []
    for source in sorted((ROOT / "benchmarks").rglob("*.py")):
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                path = Path(*node.module.split("."))
                own = [
                    one / path for one in folders if (one / path).is_dir() or (one / path).with_suffix(".py").is_file()
                ]
                missing += [f"{source.name}: {node.module}.{one.name}" for one in node.names if not _has(own, one.name)]
    assert not missing


def _has(places: list[Path], name: str) -> bool:
    """Whether a module at one of the places defines or imports a name, or is a package that holds it; true where there
    is no place: it is none of the repository's."""
    for place in places:
        if (place / name).with_suffix(".py").is_file() or (place / name).is_dir():
            return True
        source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        if source.is_file() and re.search(rf"\b{re.escape(name)}\b", source.read_text(encoding="utf-8")):
            return True
    return not places


def test_the_source_distribution_is_the_whole_checkout():
    """Its tests read pages, benchmarks and CI; what is not named is left out in silence."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    named = pyproject["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    read = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    folders = {f"/{name}" for name in re.findall(r'ROOT / "([\w.-]+)', read)} - {"/pyproject.toml"}
    assert folders | {f"/{path.name}" for path in ROOT.glob("*.md")} | {"/CITATION.cff"} <= set(named)
    assert [name for name in named if not (ROOT / name[1:]).exists()] == []


def test_the_wheel_holds_the_package_the_profiles_and_the_schemas(tmp_path: Path):
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"shardplan"}
    profiles = {f"shardplan/cluster_profiles/{path.name}" for path in (ROOT / "cluster_profiles").glob("*.yaml")}
    data = {"shardplan/py.typed", "shardplan/plan/schema.json", "shardplan/render/documents.schema.json"}
    assert profiles | data <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_documented_way_to_cut_a_checkpoint_is_the_layout(tmp_path: Path):
    """docs/plan-file.md's code against the layout itself, for every parameter and rank of a plan."""
    path = tmp_path / "two.plan.json"
    path.write_text(dumps(example_plan()), encoding="utf-8")
    document = (ROOT / "docs" / "plan-file.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(import json.*?)```", document, re.DOTALL)
    assert code
    scope: dict = {}
    exec(code[1].replace("plans/gpt2_small.4x4.plan.json", str(path)), scope)
    decisions = {tensor.checkpoint: tensor for tensor in example_plan().tensors if tensor.role == "parameter"}
    for parameter in json.loads(path.read_text(encoding="utf-8"))["parameters"]:
        shape = [min(size, 48) for size in parameter["shape"]]
        small = {**parameter, "segments": {dim: [16] * len(s) for dim, s in parameter.get("segments", {}).items()}}
        whole = np.arange(np.prod(shape)).reshape(shape)
        decision = decisions[parameter["name"]]
        layout = checkpoint_layout(decision.layout, decision.perm)
        for rank, at in enumerate(MESH.coordinates()):
            assert np.array_equal(scope["shard"](small, whole, rank), cut(whole, layout, at)), (parameter["name"], rank)


def cut(whole: np.ndarray, layout, at: tuple[int, ...]) -> np.ndarray:
    """The piece of `whole` at mesh coordinates `at`, one axis after the other, major first."""
    piece = whole
    for (dim, segments), axes in layout.dims().items():
        parts = np.split(piece, len(segments) or 1, axis=dim)
        for axis in axes:
            parts = [np.split(part, MESH.shape[axis], axis=dim)[at[axis]] for part in parts]
        piece = np.concatenate(parts, axis=dim)
    return piece
