"""From torch's graphs to a `StepGraph`."""
