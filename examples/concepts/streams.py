"""A stream: clicks in windows of ten seconds of event time, and what is too late."""

import penstock
from penstock.stream import LocalRunner, Topology, Tumbling, windowed_count

logs = penstock.open_logs("file://logs")
topology = Topology("clicks").stream("clicks", str, out_of_order="5s").stream("counts").stream("late", str)
topology.add(windowed_count("count", "clicks", "counts", Tumbling("10s"), late="late"))

logs.create("clicks")


def clicks_at(*seconds: int) -> None:
    with logs.appender("clicks", str) as out:
        out.append_many(["home"] * len(seconds), timestamps=[second * 1_000_000 for second in seconds])


clicks_at(1, 4, 12, 30)
with LocalRunner(topology, logs) as runner:
    assert runner.drain("30s")
clicks_at(2)  # its window has ended: the watermark is at second 25
with LocalRunner(topology, logs) as runner:
    assert runner.drain("30s", final=True)

for record in logs.log("counts").records():
    window = record.value
    print(f"{window['value']} clicks from second {window['start'] // 1_000_000}")
print("late:", [record.value for record in logs.log("late", str).records()])
logs.close()
