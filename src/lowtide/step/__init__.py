"""The training step as plain data: graph, schedule, plan, and what they cost."""
