"""Computations over logs, composed into a topology that a runner executes.

computation    Computation: a named step; its policy and timers; class and decorator forms
context        Context: what a computation may ask while it runs
state          keyed state: value, list and map, with TTL
timers         keyed timers in event and in processing time
operators      ready-made computations: map, filter, rekey, deduplicate, rates, running totals
columns        records as Arrow columns: process_batch over columns, map_in_arrow
chaining       steps that run as one computation, without a log between them
explaining     what each computation reads, writes and keeps, and on which path it is computed
joins          of two streams: within a span of time, by window, with a table, without a bound
windows        counts, sums and other folds over tumbling, sliding and session windows
ranking        the first few of every window by rank
topology       Topology: the graph of streams and computations
validate       what is wrong with a topology, said before it runs; ResolvedTopology: a topology on a store
copies         copies of broadcast inputs, for every instance of a computation
draw           a topology as Mermaid, PlantUML or text
runner         Runner: the contract of what executes a topology
progress       how far the computations of a topology are, read from a store alone
internal_logs  the logs of a computation's state, watermark reports and dead letters, in a store
watermark_reader  how far inputs count that other computations write, read from a store
engine/        the engine: fed batches of records, it gives checkpoints; no threads, no store
local/         LocalRunner and ProcessRunner
"""

from penstock.stream.chaining import chain
from penstock.stream.columns import Columns, map_in_arrow
from penstock.stream.computation import CONTINUE, STOP, Computation, Policy, computation
from penstock.stream.context import Context
from penstock.stream.joins import join, regular_join, table_join, window_join
from penstock.stream.local.process_runner import ProcessRunner
from penstock.stream.local.runner import LocalRunner
from penstock.stream.operators import (
    SideOutput,
    deduplicate,
    filter_values,
    flat_map,
    latest,
    map_values,
    rate_limit,
    rekey,
    running_count,
    running_fold,
    running_max,
    running_min,
    running_sum,
)
from penstock.stream.ranking import windowed_top
from penstock.stream.runner import Runner, Status
from penstock.stream.state import List, Map, Value
from penstock.stream.timers import Timer
from penstock.stream.topology import Topology
from penstock.stream.windows import (
    Session,
    Sliding,
    Tumbling,
    Windowed,
    windowed_count,
    windowed_fold,
    windowed_max,
    windowed_min,
    windowed_sum,
)

__all__ = [
    "CONTINUE",
    "STOP",
    "Columns",
    "Computation",
    "Context",
    "List",
    "LocalRunner",
    "Map",
    "Policy",
    "ProcessRunner",
    "Runner",
    "Session",
    "SideOutput",
    "Sliding",
    "Status",
    "Timer",
    "Topology",
    "Tumbling",
    "Value",
    "Windowed",
    "chain",
    "computation",
    "deduplicate",
    "filter_values",
    "flat_map",
    "join",
    "latest",
    "map_in_arrow",
    "map_values",
    "rate_limit",
    "regular_join",
    "rekey",
    "running_count",
    "running_fold",
    "running_max",
    "running_min",
    "running_sum",
    "table_join",
    "window_join",
    "windowed_count",
    "windowed_fold",
    "windowed_max",
    "windowed_min",
    "windowed_sum",
    "windowed_top",
]
