"""Lag samples: one record per log and group, also in the background."""

import threading

from penstock import open_logs
from penstock.log.maintenance.lag_samples import LagSampler, sample_lag


def test_one_record_per_log_and_group() -> None:
    with open_logs("memory://samples") as store:
        store.create("clicks", 2)
        store.create("unread", 1)
        clicks = store.log("clicks", int)
        clicks.append_many(range(5), partition=0)
        with clicks.tailer("billing") as tail:
            assert len(tail.read(3)) == 3
            tail.commit()
        assert sample_lag(store, "lag") == 1
        [record] = store.log("lag", dict).records(0)
        assert (record.key, record.value["group"], record.value["lag"]) == ("clicks", "billing", 2)
        assert record.value["at"].endswith("+00:00")
        assert sample_lag(store, "lag") == 1, "its own log is not news"


def test_in_the_background() -> None:
    with open_logs("memory://sampled") as store:
        store.create("clicks", 1)
        store.reset("billing", {store.partitions("clicks")[0]: 0})
        sampler = LagSampler(store, "lag", every="10ms")
        pause = threading.Event()
        while not store.exists("lag") or store.bounds("lag")[0].end < 3:
            pause.wait(0.01)
        sampler.close()
        assert not any(one.name == "penstock-lag" for one in threading.enumerate())
