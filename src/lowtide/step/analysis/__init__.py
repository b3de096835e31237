"""Answers about a profiled step: lifetimes, peak, shares; as tables, text, picture."""

from lowtide.step.analysis.breakdown import Peak as Peak
from lowtide.step.analysis.breakdown import Share as Share
from lowtide.step.analysis.breakdown import at_peak as at_peak
from lowtide.step.analysis.breakdown import by_kind as by_kind
from lowtide.step.analysis.breakdown import by_module as by_module
from lowtide.step.analysis.breakdown import by_op_type as by_op_type
from lowtide.step.analysis.breakdown import shares as shares
from lowtide.step.analysis.csv import save_csv as save_csv
from lowtide.step.analysis.csv import write_csv as write_csv
from lowtide.step.analysis.lifetimes import Lifetime as Lifetime
from lowtide.step.analysis.lifetimes import OpRecord as OpRecord
from lowtide.step.analysis.lifetimes import lifetimes as lifetimes
from lowtide.step.analysis.lifetimes import op_records as op_records
from lowtide.step.analysis.plot import plot_profile as plot_profile
from lowtide.step.analysis.summary import format_profile as format_profile
