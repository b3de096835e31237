"""What every op of a step costs, measured or estimated, and what a step holds."""
