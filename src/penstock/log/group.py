"""Assignments: which member of a group reads which partition, as pure functions; and the callbacks of a change."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence

import msgspec

from penstock.log.record import Partition

Callback = Callable[[list[Partition]], None]


class Listener(msgspec.Struct):
    """What a tailer calls inside ``read`` when its partitions change.

    ``on_revoked`` is called before partitions are given back, and may commit. ``on_lost`` is called after partitions
    were taken from a silent tailer, when nothing can be committed any more.
    """

    on_assigned: Callback | None = None
    on_revoked: Callback | None = None
    on_lost: Callback | None = None


def round_robin(members: Sequence[str], partitions: Sequence[Partition]) -> dict[str, list[Partition]]:
    """Assign partitions in turn: 25 over 3 members give 9, 8, 8."""
    shares: dict[str, list[Partition]] = {member: [] for member in members}
    if members:
        for number, partition in enumerate(sorted(partitions)):
            shares[members[number % len(members)]].append(partition)
    return shares


def ranges(members: Sequence[str], partitions: Sequence[Partition]) -> dict[str, list[Partition]]:
    """Assign each member a run of consecutive partitions of each log; the first runs may be longer by one."""
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
    """The assignment of subscribers: even shares, moving as few partitions as possible.

    ``members`` maps ids to the logs they want, ``partitions`` maps logs to their number of partitions, and ``owners``
    maps partitions to their present members. Members keep what they have, up to an even share. Each remaining partition
    goes to the member with the highest hash of (member, partition) that has room. Equal inputs give equal results.
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
    # The members with the most partitions get the shares that are larger by one.
    ranked = sorted(members, key=lambda member: (-len(owned[member]), _score(member, "more")))
    room = {member: each + (rank < more) for rank, member in enumerate(ranked)}
    for member, own in owned.items():
        if len(own) > room[member]:
            own.sort(key=lambda partition: _score(member, _label(partition)), reverse=True)
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
