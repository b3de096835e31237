"""Whole jobs, made of the public verbs."""
