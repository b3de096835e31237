"""Planned steps whose kernels are Inductor's.

`kernels` reads what Inductor would make of a graph, `piece` turns that into a step,
`emit` writes the graphs that a plan asks for, and `backend` has Inductor compile them.
"""
