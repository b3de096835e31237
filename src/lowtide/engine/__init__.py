"""Everything that needs torch: capture, costs, rewriting, running, measuring."""
