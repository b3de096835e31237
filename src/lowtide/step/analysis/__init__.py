"""Answers about a step and its schedules: who is alive when, why, and what it costs.

Everything is read from one walk of a schedule (`lowtide.step.walk`); text, report,
pictures, tables, explanations and comparisons read the records made here.
"""
