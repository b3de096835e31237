"""The verbs of the command line, one file each, and the frame around them.

A verb reads its TARGET, calls the library, and prints one result on standard output:
text, or with `--json` one document. Progress and errors go to standard error. Torch is
left to the engine and the models, which a verb loads when it runs.
"""
