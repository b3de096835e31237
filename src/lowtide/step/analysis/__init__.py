"""Answers about a step and its schedules: who is alive when, why, and what it costs.

Everything is read from one walk of a schedule (`lowtide.step.walk`); text, report,
pictures, tables, explanations and comparisons read the records made here.
"""

from lowtide.step.analysis.csv import save_csv as save_csv
from lowtide.step.analysis.csv import write_csv as write_csv
from lowtide.step.analysis.ops import OpRecord as OpRecord
from lowtide.step.analysis.ops import Share as Share
from lowtide.step.analysis.ops import by_module as by_module
from lowtide.step.analysis.ops import by_op_type as by_op_type
from lowtide.step.analysis.ops import extra_runs as extra_runs
from lowtide.step.analysis.ops import op_records as op_records
from lowtide.step.analysis.ops import shares as shares
from lowtide.step.analysis.ops import shares_by as shares_by
from lowtide.step.analysis.peak import Peak as Peak
from lowtide.step.analysis.peak import at_peak as at_peak
from lowtide.step.analysis.peak import peak_of as peak_of
from lowtide.step.analysis.storages import Fate as Fate
from lowtide.step.analysis.storages import Lifetime as Lifetime
from lowtide.step.analysis.storages import fates as fates
from lowtide.step.analysis.storages import lifetimes as lifetimes
from lowtide.step.analysis.storages import maker as maker
from lowtide.step.analysis.summary import format_profile as format_profile
