"""Probing: the port and the health file of a command that runs until it is stopped."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.errors import BadInput, CannotOpen

if TYPE_CHECKING:
    # Commands without probes do not need them.
    from penstock.telemetry.health import HealthSource

logger = logging.getLogger("penstock.cli")

Port = Annotated[
    int | None, typer.Option(min=0, max=65535, help="Serve /metrics, /live and /ready there; 0 takes a free one.")
]
Host = Annotated[str, typer.Option(help="Where --port listens; 0.0.0.0 lets other machines in.")]
HealthPath = Annotated[
    Path | None, typer.Option(metavar="PATH", help="Write there every second whether it is live and ready.")
]


def check_probes(*, drain: bool, port: int | None, health_file: Path | None) -> None:
    """Refuse probes of a command that ends by itself."""
    if drain and (port is not None or health_file is not None):
        raise BadInput("--drain ends by itself, so it cannot be probed.", hint="Leave --port and --health-file out.")


@contextmanager
def probed(source: HealthSource, host: str, port: int | None, health_file: Path | None) -> Iterator[None]:
    """Serve metrics and health on a port, and write the health into a file, as far as asked for."""
    with ExitStack() as open_things:
        if port is not None:
            from penstock.telemetry.exposing import Exporter

            exporter = open_things.enter_context(closing(Exporter(host, port, source)))
            logger.info("metrics and health at %s", exporter.url)
        if health_file is not None:
            from penstock.telemetry.health import HealthFile

            try:
                open_things.enter_context(closing(HealthFile(health_file, source.state)))
            except OSError as cause:
                raise CannotOpen(
                    f"the health file {health_file} cannot be written: {cause.strerror}.", hint="Name another one."
                ) from cause
        yield
