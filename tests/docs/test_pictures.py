"""The moving picture of the README."""

import re
from xml.etree import ElementTree

import lowtide
from docs.images import animate
from tests.graphs import transformer

STEP = transformer(2)


def test_the_areas_reach_the_peaks_of_their_plans():
    plain = lowtide.plan(STEP, budget=1 << 60, planner="keep_all")
    planned = lowtide.plan(STEP, budget="70%", planner="mu_two")
    drawn = ElementTree.fromstring(animate.picture(STEP, plain, planned, "A & B"))
    areas = [path.get("d") for path in drawn.iter() if path.get("clip-path")]
    assert len(areas) == 2
    tops = [min(map(float, re.findall(r"L\d+ ([\d.]+)", area))) for area in areas]
    bottom = animate.HEIGHT - animate.BOTTOM
    heights = [bottom - top for top in tops]
    assert abs(heights[1] / heights[0] - planned.peak_bytes / plain.peak_bytes) < 0.01
