"""The same click topology on Spark: its results equal those of the local runner. Then a report of what the demo did."""

import argparse
from pathlib import Path

from flows import topology
from rich.console import Console

import penstock
from penstock.errors import CannotOpen, MissingExtra
from penstock.log.maintenance.copy import LogCopy

HERE = Path(__file__).resolve().parent
RESULTS = ("sessions", "alerts", "per-minute")
console = Console(highlight=False, markup=False)


def main() -> int:
    """Run the topology, compare, then run the history pipeline over the stores of the demo."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("data", type=Path, help="the folder in which the other demos have run")
    data = options.parse_args().data.absolute()
    try:
        from penstock.spark import check_java, session

        check_java()
        spark = session(
            "demo",
            settings={
                "spark.executorEnv.PYTHONPATH": str(HERE),
                "spark.ui.showConsoleProgress": False,
                "spark.sql.shuffle.partitions": 2,
            },
        )
    except (CannotOpen, MissingExtra) as missing:
        console.print(f"Without Spark the demo ends here: {missing}")
        return 0
    spark.sparkContext.setLogLevel("OFF")
    good = compare(spark, data)
    report(spark, data)
    spark.stop()
    return 0 if good else 1


def compare(spark: object, data: Path) -> bool:
    """Whether Spark makes of the clicks what the local runner has made of them."""
    from penstock.spark import SparkRunner

    with (
        penstock.open_logs(f"file://{data / 'clicks' / 'logs'}") as local,
        penstock.open_logs(f"file://{data / 'spark' / 'logs'}") as store,
    ):
        LogCopy(local, store, "clicks", groups=False).run()
        runner = SparkRunner(topology(), store, spark)  # type: ignore[arg-type]
        runner.start()
        if not runner.drain("120s", final=True):
            console.print("\n".join(map(str, runner.status())))
            return False
        equal = {name: results(local, name) == results(store, name) for name in RESULTS}
        found = ", ".join(f"{len(results(store, name))} {name}" for name in RESULTS)
    console.print(f"Spark made {found} of the same clicks; equal to those of the local runner: {all(equal.values())}.")
    return all(equal.values())


def results(store: penstock.LogStore, name: str) -> list[str]:
    """What a log holds, without the order across partitions."""
    log = store.log(name)
    return sorted(
        f"{one.key} {one.time_us} {one.payload!r}" for part in log.partitions for one in log.records(part.index)
    )


def report(spark: object, data: Path) -> None:
    """From the history of the demo's queues to a page."""
    from penstock.spark.lake.pipeline import Pipeline, Sources
    from penstock.spark.lake.report import write_report

    stores = [data / "shop" / "shop.db", data / "backend" / "requests.db"]
    urls = tuple(f"sqlite:///{path}" for path in stores if path.exists())
    ran = Pipeline(spark, data / "lake", Sources(queues=urls)).run()  # type: ignore[arg-type]
    charts = write_report(data / "lake", data / "report.html")
    console.print(f"{sum(ran.rows.values())} attempts of the demo's queues are in the lake.")
    console.print(f"{charts} charts of them: {data / 'report.html'}")


if __name__ == "__main__":
    raise SystemExit(main())
