"""Groups: who reads which partition. Pure functions every member computes alike, and the callbacks of a change."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence

import msgspec

from penstock.log.record import Partition

Callback = Callable[[list[Partition]], None]


class Listener(msgspec.Struct):
    """What a tailer is told about its partitions, inside ``read``.

    ``on_revoked`` comes before a partition is given back: commit there. ``on_lost`` comes when it was taken away
    from a silent tailer: nothing can be committed any more.
    """

    on_assigned: Callback | None = None
    on_revoked: Callback | None = None
    on_lost: Callback | None = None


def round_robin(members: Sequence[str], partitions: Sequence[Partition]) -> dict[str, list[Partition]]:
    """Partitions dealt out in turn: 25 over 3 give 9, 8, 8."""
    shares: dict[str, list[Partition]] = {member: [] for member in members}
    if members:
        for number, partition in enumerate(sorted(partitions)):
            shares[members[number % len(members)]].append(partition)
    return shares


def ranges(members: Sequence[str], partitions: Sequence[Partition]) -> dict[str, list[Partition]]:
    """For each log a consecutive run per member, the first ones larger by one."""
    shares: dict[str, list[Partition]] = {member: [] for member in members}
    logs: dict[str, list[Partition]] = {}
    for partition in sorted(partitions):
        logs.setdefault(partition.log, []).append(partition)
    for run in logs.values():
        each, more = divmod(len(run), len(members)) if members else (0, 0)
        begin = 0
        for number, member in enumerate(members):
            end = begin + each + (number < more)
            shares[member] += run[begin:end]
            begin = end
    return shares


def sticky(
    members: Mapping[str, Sequence[str]],
    partitions: Mapping[str, int],
    owners: Mapping[Partition, str] | None = None,
) -> dict[str, list[Partition]]:
    """The dynamic assignment: even, and no partition moves that need not.

    ``members`` maps ids to the logs they want, ``partitions`` logs to their number of partitions, ``owners`` says who
    reads what now. Members keep what they have up to an even share; the rest goes to the member with the highest hash
    of (member, partition) that still has room. Everybody who sees the same computes the same.
    """
    shares: dict[str, list[Partition]] = {member: [] for member in sorted(members)}
    by_wish: dict[tuple[str, ...], list[Partition]] = {}
    for log in sorted(partitions):
        wanting = tuple(member for member in shares if log in members[member])
        if wanting:
            by_wish.setdefault(wanting, []).extend(Partition(log, index) for index in range(partitions[log]))
    for wanting, run in by_wish.items():
        _share_out(wanting, run, owners or {}, shares)
    return {member: sorted(share) for member, share in shares.items()}


def _share_out(
    members: Sequence[str],
    run: Sequence[Partition],
    owners: Mapping[Partition, str],
    shares: dict[str, list[Partition]],
) -> None:
    owned: dict[str, list[Partition]] = {member: [] for member in members}
    rest: list[Partition] = []
    for partition in run:
        owned.get(owners.get(partition, ""), rest).append(partition)
    each, more = divmod(len(run), len(members))
    # Those who have most already are the ones whose share is larger by one.
    ranked = sorted(members, key=lambda member: (-len(owned[member]), _score(member, "more")))
    room = {member: each + (rank < more) for rank, member in enumerate(ranked)}
    for member, own in owned.items():
        if len(own) > room[member]:
            own.sort(key=lambda one: _score(member, _label(one)), reverse=True)
            rest += own[room[member] :]
            del own[room[member] :]
        shares[member] += own
        room[member] -= len(own)
    for partition in sorted(rest):
        label = _label(partition)
        chosen = max((member for member in members if room[member]), key=lambda member: _score(member, label))
        room[chosen] -= 1
        shares[chosen].append(partition)


def _label(partition: Partition) -> str:
    return f"{partition.log}/{partition.index}"


def _score(member: str, label: str) -> bytes:
    return hashlib.blake2b(f"{member}\0{label}".encode(), digest_size=8).digest()
