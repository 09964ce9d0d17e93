"""What a notebook shows for a plan."""

from dataclasses import replace

from evil_plans import evil_plan
from example_plans import example_plan


def test_a_notebook_shows_the_summary():
    assert "41.2 ms" in example_plan()._repr_html_()
    assert "optimal" in example_plan()._repr_html_()


def test_a_bound_that_is_far_is_a_gap():
    plan = example_plan()
    assert "gap" in replace(plan, summary=replace(plan.summary, step_bound_ns=1))._repr_html_()


def test_names_are_not_obeyed():
    assert "<script" not in evil_plan()._repr_html_()
