"""Why entries are held: what each waits for, and those that wait for nothing that could end."""

from __future__ import annotations

from penstock.queue.batch import PAGE, state_of
from penstock.queue.protocol import Find, Link, Wait
from penstock.queue.queues import QueueStore

MOST_REASONS = 20  # entries that are named as what another one waits for


def reasons(store: QueueStore, wait: Wait) -> list[str]:
    """Why an entry is held, one line for each entry it waits for: never empty while it needs something."""
    lines = []
    for link in store.driver.links(target=wait.id, limit=MOST_REASONS):
        if link.on == "open":
            lines.append(f"the batch is not complete: its maker has not opened {link.source} yet")
            continue
        known = state_of(store, link.source)
        queue, state = known or ("?", "not known any more")
        wish = "to be done" if link.on == "done" else "to end"
        hint = "; replay it (purging it cancels this one)" if state == "dead" else ""
        lines.append(f"waits for {link.source} of queue {queue} {wish}: it is {state}{hint}")
    left = wait.needs - len(lines)
    if left > 0 and len(lines) == MOST_REASONS:
        lines.append(f"and for {left:,} more")
    elif left:
        lines.append(f"needs {left:,} more that no link leads from: see penstock doctor")
    return lines


def orphans(store: QueueStore) -> list[str]:
    """Ids of held entries that need nothing, or whose needs are not the links of entries that live or are dead."""
    ids: list[str] = []
    after = ""
    while page := store.driver.waits(after=after, limit=PAGE):
        held = {
            entry.id
            for entry in store.driver.find(Find(ids=tuple(wait.id for wait in page), states=("held",), limit=len(page)))
        }
        ids += [wait.id for wait in page if wait.id in held and _is_orphan(store, wait)]
        after = page[-1].id
    return ids


def _is_orphan(store: QueueStore, wait: Wait) -> bool:
    if not wait.needs:
        return True
    links: list[Link] = []
    while page := store.driver.links(target=wait.id, after=(links[-1].source, wait.id) if links else ("", "")):
        links += page
    sources = tuple(link.source for link in links)
    alive = {entry.id for entry in store.driver.find(Find(ids=sources, limit=len(sources) or 1))}
    alive |= {entry.id for entry in store.driver.dead(Find(ids=sources, limit=len(sources) or 1))}
    return len(links) != wait.needs or not alive.issuperset(sources)
