"""Plans that an earlier process found are used again, and never believed."""

from pathlib import Path

import pytest

from lowtide import plan as find
from lowtide.engine.planning.plans import kept_on_disk
from tests.graphs import GRAPHS

STEP = GRAPHS[1]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path))
    return tmp_path / "plans"


def search(limit_bytes: int, found: list[int]):
    def run():
        found.append(limit_bytes)
        return find(STEP, budget=limit_bytes, planner="keep_all")

    return run


def test_a_second_search_is_answered_from_disk(folder: Path) -> None:
    limit, found = STEP.baseline_peak_bytes, []
    first = kept_on_disk(STEP, limit, ("keep_all", 1.0), search(limit, found))
    second = kept_on_disk(STEP, limit, ("keep_all", 1.0), search(limit, found))
    assert found == [limit]
    assert second.schedule == first.schedule
    assert second.peak_bytes == first.peak_bytes
    assert len(list(folder.iterdir())) == 1


def test_another_limit_or_planner_is_searched_for() -> None:
    limit, found = STEP.baseline_peak_bytes, []
    for asked in (("keep_all", 1.0), ("auto", 1.0), ("keep_all", 2.0)):
        kept_on_disk(STEP, limit, asked, search(limit, found))
    kept_on_disk(STEP, limit + 1, ("keep_all", 1.0), search(limit + 1, found))
    assert len(found) == 4


@pytest.mark.parametrize("content", ["", "{", '{"lowtide": "plan"}'])
def test_a_damaged_file_is_searched_for_and_replaced(
    folder: Path, content: str
) -> None:
    limit, found = STEP.baseline_peak_bytes, []
    kept_on_disk(STEP, limit, (), search(limit, found))
    (path,) = folder.iterdir()
    path.write_text(content)
    kept_on_disk(STEP, limit, (), search(limit, found))
    kept_on_disk(STEP, limit, (), search(limit, found))
    assert len(found) == 2


def test_a_folder_that_cannot_be_written_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path / "file"))
    limit, found = STEP.baseline_peak_bytes, []
    for _ in range(2):
        kept_on_disk(STEP, limit, (), search(limit, found))
    assert len(found) == 2
