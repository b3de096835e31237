"""A step as a chain of segments: what the planners of Chen, Hong and rotor share."""

from lowtide.planners._chain.chain import Chain as Chain
from lowtide.planners._chain.chain import chain_of as chain_of
