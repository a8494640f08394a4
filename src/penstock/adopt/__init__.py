"""Adopt: take over what lives in killbill-queue, delayedQueue, ZkQueue or redisques, without changing it there.

adoption       the taking over: compare, load, verify
source         what each of them is read as
opening        from a name and a URL to one of them
killbill       tables in PostgreSQL or MariaDB
delayed_queue  keys in Redis
redisques      keys in Redis
zkqueue        znodes in ZooKeeper
sql_tables, redis_keys   how those databases are read
"""

from penstock.adopt.adoption import Adopted, Adoption, Plan, QueuePlan
from penstock.adopt.opening import SEEDS, open_source
from penstock.adopt.source import Source

__all__ = ["SEEDS", "Adopted", "Adoption", "Plan", "QueuePlan", "Source", "open_source"]
