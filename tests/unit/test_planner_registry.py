"""The registry: names, order, loading on demand, planners from other packages."""

import subprocess
import sys
import textwrap

import pytest

from lowtide import planners
from lowtide.errors import InvalidArgumentError
from tests.graphs import chain


def test_every_planner_has_a_function_and_a_page():
    for name in planners.available():
        planner = planners.load(name)
        assert planner.name == name
        assert callable(planner.plan)
        assert len(planner.doc.splitlines()) >= 3, f"{name} has no page"


def test_names_are_listed_from_simplest_to_best():
    names = planners.available()
    assert names[:2] == ("keep_all", "recompute_all")
    assert names.index("chen_sqrt") < names.index("hong_dynamic") < names.index("rotor")
    assert not any(name.startswith("_") for name in names)
    assert len(set(names)) == len(names)


def test_the_plan_says_which_planner_made_it():
    step = chain(2)
    for name in planners.available():
        assert planners.load(name).plan(step, step.baseline_peak_bytes).planner == name


@pytest.mark.parametrize("name", ["chan_sqrt", "_chain", "", "keep_all.py"])
def test_an_unknown_name_is_refused_with_the_known_ones(name):
    with pytest.raises(InvalidArgumentError, match="keep_all") as caught:
        planners.load(name)
    assert repr(name) in str(caught.value)


def test_a_close_name_is_offered():
    with pytest.raises(InvalidArgumentError, match="'chen_sqrt' is close"):
        planners.load("chan_sqrt")


def test_loading_one_planner_imports_no_other():
    code = """
        import sys
        from lowtide import planners
        planners.available()
        planners.load("keep_all")
        loaded = {m.split(".")[2] for m in sys.modules if "lowtide.planners." in m}
        assert loaded == {"keep_all"}, loaded
        assert "torch" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


@pytest.fixture
def installed_planner(tmp_path, monkeypatch):
    """An installed distribution that brings a planner through its entry point."""
    (tmp_path / "their_package.py").write_text(
        textwrap.dedent('''
            """Keep everything, by somebody else.

            Problem, idea, reference: see `keep_all`.
            """

            from lowtide.step.schedule import plan_or_raise, with_frees


            def plan(step, budget_bytes=None, *, time_limit=10.0):
                schedule = with_frees(step, step.baseline)
                return plan_or_raise(
                    step, schedule, planner="theirs", budget_bytes=budget_bytes
                )
        ''')
    )
    info = tmp_path / "their_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n"
    )
    (info / "entry_points.txt").write_text(
        "[lowtide.planners]\n"
        "theirs = their_package:plan\n"
        "keep_all = their_package:plan\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    planners.load.cache_clear()
    yield "theirs"
    planners.load.cache_clear()
    sys.modules.pop("their_package", None)


def test_another_package_adds_a_planner(installed_planner):
    assert planners.available()[-1] == installed_planner
    planner = planners.load(installed_planner)
    assert planner.doc.startswith("Keep everything, by somebody else.")
    step = chain(2)
    plan = planner.plan(step, None)
    assert plan.planner == "theirs"
    assert plan.peak_bytes == step.baseline_peak_bytes


def test_another_package_cannot_replace_a_built_in_planner(installed_planner):
    assert planners.available().count("keep_all") == 1
    assert planners.load("keep_all").doc.startswith(
        "Keep everything: the step as it is"
    )


def test_the_planner_is_gone_when_its_package_is(tmp_path):
    assert "theirs" not in planners.available()
