"""The command ``penstock``: what an operator does with a store, and the worker processes.

app        the root command; errors become one line and an exit code
reading    what was typed, as values
opened     from ``--url`` to a store that is already there
log_lines  log lines of worker, serve and stream run, as text or JSON
probing    the port and the health file of worker and stream run
printing   tables, JSON, and times as people read them
help       how --help reads
watching   --watch on commands that look
interrupts Ctrl-C in a loop that looks again and again
completing completion in the shell
recording  who changed what, for the page of changes
queues     penstock queue list, show, put, lock, unlock
entries    penstock queue entry, find
batches    penstock batch show, cancel
choosing   which entries a command means: ids, labels, errors, all
ending     penstock queue cancel, replay, purge, prune, delete
top        penstock top: a live view
observing  what it shows
copying    penstock queue copy
adopting   penstock adopt
logs       penstock log list, create, append, cat, tail, lag, reset, delete, copy, backup, verify, repair,
           enforce-retention
record_lines  records as lines, printed and read back
streams    penstock stream draw, run, lag, reset
breaker    penstock breaker list, show, open, close, config, advise
schedules  penstock schedule list, remove; penstock bus list
doctor     penstock doctor
installation  penstock doctor --install
schema     penstock schema print, check, migrate
worker     penstock worker: one process
application  from MODULE:APP to a store with handlers
children   penstock worker --processes N: the parent of several
health     penstock health: a probe
serve      penstock serve, penstock key new, remove
bulk       penstock import, penstock export
pipeline   penstock pipeline run, report

Exit codes: 0 done; 1 a check failed, rows were rejected, or nothing was there to do; 2 wrong input, or a store that
cannot be opened; 3 the store did not answer; 4 ``--yes`` is missing.
"""

import importlib.util
import sys

NEEDED = ("typer", "rich")


def main() -> None:
    """Run the command line; without its extra say how to install it."""
    if sys.argv[1:2] == ["health"]:
        # A probe is run every few seconds: it takes a tenth of the time without the other commands.
        from penstock.cli import health

        sys.exit(health.main(sys.argv[2:]))
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f'penstock: the command line needs {" and ".join(missing)}. Run: pip install "penstock[cli]"',
            file=sys.stderr,
        )
        sys.exit(2)
    try:
        from penstock.cli.app import app
    except KeyboardInterrupt:
        sys.exit(130)
    app(prog_name="penstock")
