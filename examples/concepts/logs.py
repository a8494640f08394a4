"""A log: records stay, and every group reads them at its own speed."""

import penstock

logs = penstock.open_logs("file://logs")
logs.create("visits", partitions=2)
visits = logs.log("visits", str)
for page in ("home", "cart", "home"):
    visits.append(page, key=page)  # a key is always in the same partition

for group in ("statistics", "search"):
    with visits.tailer(group) as tail:
        records = tail.read()
        print(group, "read", sorted(record.value for record in records))
        tail.commit()

visits.append("checkout", key="checkout")
with visits.tailer("search") as tail:
    assert [record.value for record in tail.read()] == ["checkout"]  # it goes on where it was
logs.close()
