"""Small queues in a ZooKeeper ensemble: every call is one multi, and what a session claimed goes back when it ends.

driver         the contract of a store, in terms of these
mirrored_space  one space as a handle's calls read and write it, one at a time
mirror         the space in this process's memory; the rules run on it
optimistic     drafts a call there, sends it, and drafts it again when somebody else was first
certainty      which answers need no look at the log
commit         what the call changed, as one multi
changelog      follows what others committed
loading        reads the whole space when there is no log to follow
payloads       brings payloads in and out
serialization  what is in the znodes
layout         where they are
schema         their version, and making them
connection     sessions, reads, multis, the server's time
wakeup         the doorbell
sweeping       what is cleaned up
server_checks  what ``doctor`` says

Below ``/<chroot>/<space>``:

- ``queues/<queue>``: its head: definition, locks on the queue, rate; set with a version check by every commit that
  changes anything in the queue, so a call that was worked out on an old view is refused and run again;
- ``queues/<queue>/entries/<bucket>/<number>``: what was put, with its payload: written once; 1,000 per bucket. An
  entry that nothing else speaks of waits as it was put;
- ``queues/<queue>/ready/<number>``: a waiting entry that is no longer as it was put: retried, released, rescheduled;
- ``queues/<queue>/claims/<claim>~<part>``: one claim: owner, end, attempts, session, and the entries it holds;
- ``queues/<queue>/history/page-<number>``: the attempts that ended in one commit, and what was settled without one;
- ``queues/<queue>/dead/<bucket>/<number>``: a dead letter; its body stays in ``entries``;
- ``queues/<queue>/unique/u-<key>``: who holds a unique id;
- ``handles/h-<number>``: ephemeral: the session of one handle; its claims name it;
- ``log/c-<number>``: one record per commit, for the mirrors; ``bell``, ``nodes``, ``schedules``, ``subscriptions``,
  ``documents``;
- ``links/i-<id>``: who waits for an entry; with a number and a state behind the id: links of an entry that has ended
  so, which one commit had no room for; ``waits/i-<id>``: what an entry that waits needs; ``results/i-<id>``.

A claim holds what it took while its record says so *and* the node of its session is there: whoever settles or extends
checks both in the multi. A session that ends takes its node with it; whoever notices, the reaper at the latest, takes
the entries back at once, as if their leases had run out.
"""

from penstock.queue.drivers.zookeeper.driver import ZookeeperDriver, is_there, open_driver

__all__ = ["ZookeeperDriver", "is_there", "open_driver"]
