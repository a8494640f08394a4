"""Which answers are right if their multi goes through, however old the mirror is on which they were worked out.

The multi checks the heads of the queues it changes, so it is refused if anything there is not as it was thought to be.
What was looked up elsewhere it does not check: a refusal, a known id, a unique id that is held, a queue without work.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import PenstockError
from penstock.queue.protocol import Claimed, ClaimRequest, Settled, Step, StepDone


def is_certain(claim: ClaimRequest | None, settled: Settled) -> bool:
    """Whether all steps were done, all documents written, and the claim could not have got more."""
    return all(map(_is_done, settled.results)) and all(settled.written) and _is_full(claim, settled.claimed)


def _is_done(result: StepDone | PenstockError) -> bool:
    return isinstance(result, StepDone) and all(put.created for put in result.puts)


def _is_full(claim: ClaimRequest | None, claimed: Claimed) -> bool:
    if claim is None:
        return True
    return len(claimed.entries) >= min(claim.limit, sum(source.limit for source in claim.sources))


def is_repeat(steps: Sequence[Step], claim: ClaimRequest | None) -> bool:
    """Whether it has to be looked up what happened before."""
    if claim is not None and claim.repeat:
        return True
    return any(
        step.repeat or any(entry.repeat for entry in step.puts) or any(event.template.repeat for event in step.events)
        for step in steps
    )
