"""Comparisons that a sceptic runs: lowtide beside other methods, on one model.

`methods` says how each other method is put on a model, `against` runs them all in one
go, `activations` plans for the peak of activations alone.
"""
