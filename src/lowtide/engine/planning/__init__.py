"""From captured graphs to the order in which their ops run."""
