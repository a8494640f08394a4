"""The worker: claims entries, runs their handlers, settles the outcomes.

worker          Worker: start, stop, run, drain
loop            Loop: the round trip, in numbered steps
pump            Pump: the thread that makes round trips while all slots are idle
counting        tells whoever counts attempts which have ended
registry        PoolRegistry: which handler runs in which pool
free_core       whether the machine has a core to spare for fetching ahead
pool            HandlerPool: where the entries of one handler wait and run
pools/          the kinds of pools: threads, processes, an event loop, an executor
processes       HandlerProcess: a process that runs a handler, can be killed and is replaced
deadlines       notices attempts whose time is over
event_loop      the loop that a worker's async handlers share
suspects        entries whose last worker vanished run alone
verdicts        what middleware has learnt, written with the round trip
late            logs outcomes that did not count: cancelled meanwhile, or too late
outage          logs that the store does not answer
heartbeat       keeps leases alive while work continues
presence        tells the store that a worker lives, what it serves and how busy it is
figures         what workers did, minute by minute
figure_history  the same for who looks again and again
maintenance     Reaper: takes back run-out leases, fires schedules, prunes history
shutdown        SIGTERM and SIGINT while a worker runs or drains
"""

from penstock.queue.worker.worker import Worker

__all__ = ["Worker"]
