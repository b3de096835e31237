"""Checkmate's program: the stages of a step, and the linear model over them."""
