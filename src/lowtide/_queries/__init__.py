"""Answers about a profiled step: lifetimes, peak, shares; as tables, text, picture."""

from lowtide._queries._breakdown import Peak as Peak
from lowtide._queries._breakdown import Share as Share
from lowtide._queries._breakdown import at_peak as at_peak
from lowtide._queries._breakdown import by_kind as by_kind
from lowtide._queries._breakdown import by_module as by_module
from lowtide._queries._breakdown import by_op_type as by_op_type
from lowtide._queries._breakdown import shares as shares
from lowtide._queries._csv import save_csv as save_csv
from lowtide._queries._csv import write_csv as write_csv
from lowtide._queries._lifetimes import Lifetime as Lifetime
from lowtide._queries._lifetimes import OpRecord as OpRecord
from lowtide._queries._lifetimes import lifetimes as lifetimes
from lowtide._queries._lifetimes import op_records as op_records
from lowtide._queries._plot import plot_profile as plot_profile
from lowtide._queries._summary import format_profile as format_profile
