"""Feng and Huang's graphs: vertices, their division tree, and what to keep of it."""
