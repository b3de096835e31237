"""Comparisons that a sceptic runs: other methods, and published tables.

`_methods` says how each other method is put on a model, `_against` runs them all in one
go, `_feng` plans the published models at their published cut.
"""
