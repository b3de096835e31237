"""A step as a chain of segments: what the planners of Chen, Hong and rotor share."""
