"""When the far side is down: circuits that open, queues that wait, and a gentle way back.

breaker      Breaker: the guard over all circuits
circuit      a circuit's states, what the store keeps of it, its rules
statistics   distinct recent requests, by how they ended
samples      how a process shares its outcomes with the other nodes
ledger       what the nodes share, through the store's documents
guard        CircuitGuard: stands before a handler
verdicts     what attempts say of the far side, on its way into the store
periodic     periodic work, once per interval in the whole cluster
settings     gateleen's configuration resource, and settings of our own
rules        routing rules: from a request's address to its circuit
advice       configuration values from capacity and load
hashing      gateleen's circuit hash
masking      what must not be read in logs
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.importing import names_on_demand

if TYPE_CHECKING:
    from penstock.breaker.breaker import Breaker
    from penstock.breaker.settings import BreakerConfig, BreakerSettings, Override

__all__ = ["Breaker", "BreakerConfig", "BreakerSettings", "Override"]

__getattr__, __dir__ = names_on_demand(
    __name__,
    __all__,
    {
        "penstock.breaker.breaker": "Breaker",
        "penstock.breaker.settings": "BreakerConfig BreakerSettings Override",
    },
)
