"""Learns what every op of a step costs, and what the step holds when.

`costs` prices calls, by measurement on the real device or from a device description.
"""

from lowtide._profile._calibrate import calibrate as calibrate
from lowtide._profile._cost import Cost as Cost
from lowtide._profile._cost import total_cost as total_cost
from lowtide._profile._costs import costs as costs
from lowtide._profile._devices import Device as Device
from lowtide._profile._devices import available_devices as available_devices
from lowtide._profile._devices import find_device as find_device
from lowtide._profile._ledger import LedgerTimeline as LedgerTimeline
from lowtide._profile._ledger import ledger as ledger
from lowtide._profile._optimizer import state_bytes as state_bytes
from lowtide._profile._optimizer import with_optimizer as with_optimizer
