"""Other ways to run an op: in parts, in place, packed, drawn again."""
