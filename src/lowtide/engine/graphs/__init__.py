"""Graphs that run in a given order, and what is watched while they do."""
