"""Computations over logs, composed into a topology that a runner executes.

computation  Computation: a named step; its policy and timers; class and decorator forms
context      Context: what a computation may ask while it runs
state        keyed state: value, list and map, with TTL
cells        what a task keeps of a state: values by key, decoded when they are touched
timers       keyed timers in event and in processing time
watermark    how far event time has come
watermark_log  how event time comes from one computation to the next: reports, and who waits for them
timekeeping  event time of the tasks of one instance: what inputs count for, what is reported
changelog    state and timers as records: written with a checkpoint, restored, compacted, versioned
topology     Topology: the graph of streams and computations
checks       what is wrong with a topology, told before it runs
drawing      a topology as Mermaid, PlantUML or text
runner       Runner: the contract of what executes a topology
local        LocalRunner: threads over a log store
instance     one thread of a computation, started again when it dies
shift        what a thread does while it is a member of its group: read, process, checkpoint
work         records that wait or are done, and what comes out of them
task         one partition of a computation: its state, timers, watermark and outputs
intake       where an instance's records come from
draining     exact draining by captured end offsets
progress     how far the computations of a topology are, read from a store alone
processes    ProcessRunner: several processes, for work that keeps a core busy
child        what runs in each of these processes
pieces       map, filter, flat_map, deduplicate, rates
moments      times as text in their order, for the names of items in a map
folds        count, sum, least and greatest as folds
windows      counts, sums and other folds over tumbling, sliding and session windows
totals       the same per key without windows
joining      two streams joined by key within a window
"""

from penstock.stream.computation import CONTINUE, STOP, Computation, Policy, computation
from penstock.stream.context import Context
from penstock.stream.joining import join
from penstock.stream.local import LocalRunner
from penstock.stream.pieces import deduplicate, filter_values, flat_map, latest, map_values, rate_limit, rekey
from penstock.stream.processes import ProcessRunner
from penstock.stream.runner import Runner, Status
from penstock.stream.state import List, Map, Value
from penstock.stream.timers import Timer
from penstock.stream.topology import Topology
from penstock.stream.totals import running_count, running_fold, running_max, running_min, running_sum
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
    "Computation",
    "Context",
    "List",
    "LocalRunner",
    "Map",
    "Policy",
    "ProcessRunner",
    "Runner",
    "Session",
    "Sliding",
    "Status",
    "Timer",
    "Topology",
    "Tumbling",
    "Value",
    "Windowed",
    "computation",
    "deduplicate",
    "filter_values",
    "flat_map",
    "join",
    "latest",
    "map_values",
    "rate_limit",
    "rekey",
    "running_count",
    "running_fold",
    "running_max",
    "running_min",
    "running_sum",
    "windowed_count",
    "windowed_fold",
    "windowed_max",
    "windowed_min",
    "windowed_sum",
]
