"""Learns what every op of a step costs, and what the step holds when.

`costs` prices calls, by measurement on the real device or from a device description.
"""

from lowtide.engine.costs.calibrate import calibrate as calibrate
from lowtide.engine.costs.cost import Cost as Cost
from lowtide.engine.costs.cost import total_cost as total_cost
from lowtide.engine.costs.devices import available_devices as available_devices
from lowtide.engine.costs.devices import find_device as find_device
from lowtide.engine.costs.ledger import ledger as ledger
from lowtide.engine.costs.optimizer import UpdateBytes as UpdateBytes
from lowtide.engine.costs.optimizer import optimizer_of as optimizer_of
from lowtide.engine.costs.optimizer import update_bytes as update_bytes
from lowtide.engine.costs.optimizer import with_optimizer as with_optimizer
from lowtide.engine.costs.prices import costs as costs
