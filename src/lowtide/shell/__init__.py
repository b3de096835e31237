"""The verbs of the command line, one file each. Nothing here imports torch at once.

A verb reads its TARGET, calls the library, and prints one result on standard output:
text, or with `--json` one document. Progress and errors go to standard error.
"""
