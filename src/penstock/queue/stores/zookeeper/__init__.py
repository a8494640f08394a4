"""Small queues in a ZooKeeper ensemble: every call is one multi, and what a session holds goes with it.

``store`` is the handle, ``mirror`` the space in this process's memory (the memory store's rules run on it), ``trials``
runs a call there and tries again when somebody else was first, ``commit`` turns what the call changed into one multi,
``journal`` follows what others committed, ``payloads`` brings payloads in and out, ``records`` says what is in the
znodes and ``layout`` where they are, ``session`` is the connection, ``bell`` the wake-up, ``sweeping`` what is
cleaned up, ``server`` what ``doctor`` says.

Below ``/<chroot>/<space>``:

- ``queues/<queue>``: its head: definition, locks on the queue, rate; set with a version check by every commit that
  changes anything in the queue, so a call that was worked out on an old view is refused and run again;
- ``queues/<queue>/items/<bucket>/item-<number>``: an entry as it was put, with its payload; 1,000 per bucket;
- ``queues/<queue>/meta/<bucket>/meta-<number>``: the entry as it is now, once it was claimed or changed: attempts,
  due time, lease, last error;
- ``queues/<queue>/locks/lock-<number>`` and ``lock-<number>_<token>``: ephemeral;
- ``queues/<queue>/dlq/<bucket>/item-<number>``: a dead letter, whole;
- ``queues/<queue>/ended``, ``kept``, ``unique``: history rows and remembered ids, the payloads to them, unique ids;
- ``log/c-<number>``: one record per commit, for the mirrors; ``bell``, ``handles``, ``nodes``, ``schedules``,
  ``subscriptions``.

A lease is two things. In ``meta`` it is what the contract says: token, owner, end, fence, attempts, written in the
claim's multi before any handler sees the entry. Beside it are two ephemeral nodes of the claiming session: the lock
excludes others, the guard has the token in its name and says whose it is. Each settle deletes the guard and each
extension checks it, so a lease is current only while its token is *and* its session lives. A session that ends takes
all its locks with it in one transaction; whoever notices, the reaper at the latest, takes the entries back at once, as
if their leases had run out.
"""

from penstock.queue.stores.zookeeper.store import ZookeeperStore, is_there, open_store

__all__ = ["ZookeeperStore", "is_there", "open_store"]
