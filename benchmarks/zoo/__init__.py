"""The models of `benchmarks/corpus.py`, and the trial that each of them stands."""
