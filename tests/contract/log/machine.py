"""A state machine that holds a log store against a small model: appends, reads, commits, seeks, transactions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from penstock.log.record import Offset, Partition
from penstock.log.store import LogStore
from penstock.log.tailer import Tailer

PARTITIONS = 2
GROUPS = ("a", "b")


class LogMachine(RuleBasedStateMachine):
    """One log, two groups with at most one tailer each, two handles."""

    opened: Callable[[], LogStore]

    def __init__(self) -> None:
        """Start with an empty log."""
        super().__init__()
        self.first, self.second = self.opened(), self.opened()
        self.first.create("log", partitions=PARTITIONS, segment_bytes=4096)
        self.first.create("side", partitions=1)
        self.model: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.side: list[bytes] = []
        self.committed: dict[str, list[int | None]] = {group: [None] * PARTITIONS for group in GROUPS}
        self.tailers: dict[str, Tailer[Any]] = {}
        self.positions: dict[str, list[int]] = {}
        self.outs = [store.appender("log", bytes) for store in (self.first, self.second)]

    def teardown(self) -> None:
        """Close everything."""
        self.first.close()
        self.second.close()

    @rule(who=st.integers(0, 1), partition=st.integers(0, PARTITIONS - 1), data=st.binary(max_size=300))
    def append(self, who: int, partition: int, data: bytes) -> None:
        """One record."""
        place = self.outs[who].append(data, partition=partition)
        assert place == Offset("log", partition, len(self.model[partition]))
        self.model[partition].append(data)

    @rule(
        who=st.integers(0, 1),
        partition=st.integers(0, PARTITIONS - 1),
        batch=st.lists(st.binary(max_size=900), max_size=8),
        keyed=st.booleans(),
    )
    def append_many(self, who: int, partition: int, batch: list[bytes], keyed: bool) -> None:
        """A batch."""
        keys = [f"k{number}" for number in range(len(batch))] if keyed else None
        self.outs[who].append_many(batch, partition=partition, keys=keys)
        self.model[partition] += batch

    @rule(who=st.integers(0, 1), group=st.sampled_from(GROUPS))
    def open_tailer(self, who: int, group: str) -> None:
        """A tailer, if the group has none."""
        if group not in self.tailers:
            self.tailers[group] = (self.first, self.second)[who].tailer("log", group, bytes)
            self.positions[group] = [kept or 0 for kept in self.committed[group]]

    @precondition(lambda self: self.tailers)
    @rule(data=st.data(), limit=st.integers(1, 12))
    def read(self, data: st.DataObject, limit: int) -> None:
        """What comes is next in its partition, and nothing comes only when there is nothing."""
        group = data.draw(st.sampled_from(sorted(self.tailers)))
        positions = self.positions[group]
        got = self.tailers[group].read(limit)
        assert len(got) <= limit
        for record in got:
            assert record.offset == positions[record.partition]
            assert record.payload == self.model[record.partition][record.offset]
            positions[record.partition] += 1
        if not got:
            assert positions == [len(kept) for kept in self.model]

    @precondition(lambda self: self.tailers)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        """Keep the positions."""
        group = data.draw(st.sampled_from(sorted(self.tailers)))
        self.tailers[group].commit()
        self.committed[group] = list(self.positions[group])

    @precondition(lambda self: self.tailers)
    @rule(data=st.data())
    def seek(self, data: st.DataObject) -> None:
        """Anywhere in a partition."""
        group = data.draw(st.sampled_from(sorted(self.tailers)))
        partition = data.draw(st.integers(0, PARTITIONS - 1))
        target = data.draw(st.integers(0, len(self.model[partition])))
        self.tailers[group].seek(Offset("log", partition, target))
        self.positions[group][partition] = target

    @precondition(lambda self: self.tailers)
    @rule(data=st.data())
    def close_tailer(self, data: st.DataObject) -> None:
        """What was not committed is forgotten."""
        group = data.draw(st.sampled_from(sorted(self.tailers)))
        self.tailers.pop(group).close()
        del self.positions[group]

    @precondition(lambda self: self.tailers)
    @rule(data=st.data(), output=st.binary(max_size=50), happens=st.booleans())
    def transact(self, data: st.DataObject, output: bytes, happens: bool) -> None:
        """Outputs and offsets together."""
        group = data.draw(st.sampled_from(sorted(self.tailers)))
        tail = self.tailers[group]
        with tail.store.transaction() as tx:
            tx.append("side", output, bytes)
            tx.append("log", output, bytes, partition=0)
            tx.commit_offsets(tail)
            if happens:
                tx.commit()
        if happens:
            self.side.append(output)
            self.model[0].append(output)
            self.committed[group] = list(self.positions[group])

    @invariant()
    def bounds_and_commits_are_the_models(self) -> None:
        """Both handles agree with the model."""
        for store in (self.first, self.second):
            assert [one.end for one in store.bounds("log")] == [len(kept) for kept in self.model]
            assert store.bounds("side")[0].end == len(self.side)
            for group in GROUPS:
                assert store.committed("log", group) == self.committed[group]

    @rule(partition=st.integers(0, PARTITIONS - 1), data=st.data())
    def ranges(self, partition: int, data: st.DataObject) -> None:
        """Any range is what the model has there."""
        start = data.draw(st.integers(0, len(self.model[partition])))
        stop = data.draw(st.integers(start, len(self.model[partition])))
        found: list[bytes] = []
        for batch in self.second.batches(Partition("log", partition), start, stop):
            found += batch.payloads()
        assert found == self.model[partition][start:stop]


def run(opened: Callable[[], Callable[[], LogStore]], *, examples: int) -> None:
    """Play; ``opened`` gives for every play a function that opens handles on one fresh store."""

    class Machine(LogMachine):
        def __init__(self) -> None:
            self.opened = opened()
            super().__init__()

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples, stateful_step_count=30, deadline=None, derandomize=False,
            suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip
