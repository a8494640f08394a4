"""How a breaker behaves: gateleen's configuration resource with its nine properties, and settings of our own."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from penstock.clock import Micros
from penstock.codec import prepared
from penstock.errors import BadInput

MILLISECOND: Micros = 1000
LARGEST = 10**12  # of any number in here; as milliseconds, some thirty years


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A periodic task: whether it runs, and every how many milliseconds, once per cluster."""

    enabled: bool
    interval: int


@prepared
class BreakerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The configuration resource. Without arguments it is gateleen's default: everything is switched off."""

    circuit_check_enabled: bool = False
    statistics_update_enabled: bool = False
    error_threshold_percentage: int = 90
    entries_max_age_ms: int = msgspec.field(default=86_400_000, name="entriesMaxAgeMS")
    min_queue_sample_count: int = 100
    max_queue_sample_count: int = 5000
    open_to_half_open: Task = Task(False, 120_000)
    unlock_queues: Task = Task(False, 10_000)
    unlock_sample_queues: Task = Task(False, 120_000)

    @classmethod
    def active(cls, **changes: Any) -> BreakerConfig:
        """The same numbers with every switch on; ``changes`` by our names, intervals of tasks in milliseconds."""
        tasks = {name: Task(True, getattr(cls(), name).interval) for name in TASKS}
        for name in TASKS:
            if isinstance(changes.get(name), int):
                changes[name] = Task(True, changes[name])
        wanted = {"circuit_check_enabled": True, "statistics_update_enabled": True, **tasks, **changes}
        return read_config(msgspec.to_builtins(cls(**wanted)))

    @property
    def max_age_us(self) -> Micros:
        """The window of the statistics."""
        return self.entries_max_age_ms * MILLISECOND

    def resource(self) -> dict[str, Any]:
        """The nine properties under gateleen's names."""
        properties: dict[str, Any] = msgspec.to_builtins(self)
        return properties


TASKS = ("open_to_half_open", "unlock_queues", "unlock_sample_queues")
_NAMES = {field.name: field.encode_name for field in msgspec.structs.fields(BreakerConfig)}
PROPERTIES = tuple(_NAMES.values())


def read_config(resource: Any) -> BreakerConfig:
    """Check a configuration resource: all nine properties, nothing else, each in its range."""
    if isinstance(resource, bytes | str):
        try:
            resource = msgspec.json.decode(resource)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as cause:
            raise BadInput(f"the breaker's configuration is not JSON: {cause}.", hint=_EXAMPLE) from cause
    if not isinstance(resource, dict):
        raise BadInput("the breaker's configuration is not JSON object.", hint=_EXAMPLE)
    problems = [f"{name} is missing" for name in PROPERTIES if name not in resource]
    problems += [f"{name} is unknown" for name in resource if name not in PROPERTIES]
    if problems:
        raise BadInput(f"the breaker's configuration cannot be used: {', '.join(problems)}.", hint=_EXAMPLE)
    try:
        read = msgspec.convert(resource, BreakerConfig)
    except msgspec.ValidationError as cause:
        raise BadInput(f"the breaker's configuration cannot be used: {cause}.", hint=_EXAMPLE) from cause
    for field, name in _NAMES.items():
        value = getattr(read, field)
        if isinstance(value, Task) and value.interval < 1:
            raise BadInput(f"{name}.interval is {value.interval}.", hint="Give 1 millisecond or more.")
        number = value.interval if isinstance(value, Task) else value
        if not 0 <= number <= LARGEST:
            raise BadInput(f"{name} is {number}.", hint=f"Give 0 to {LARGEST:,}.")
    if read.error_threshold_percentage > 100:
        raise BadInput(
            f"errorThresholdPercentage is {read.error_threshold_percentage}.", hint="Give a percentage, 0 to 100."
        )
    return read


_EXAMPLE = f"All of these and nothing else: {', '.join(PROPERTIES)}."


class Override(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    """What one circuit has of its own; None follows the breaker."""

    error_threshold_percentage: int | None = None
    entries_max_age_ms: int | None = msgspec.field(default=None, name="entriesMaxAgeMS")
    min_queue_sample_count: int | None = None
    max_queue_sample_count: int | None = None

    def __post_init__(self) -> None:
        """Refuse what the configuration itself could not say."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            most = 100 if name == "error_threshold_percentage" else LARGEST
            if value is not None and (not isinstance(value, int) or not 0 <= value <= most):
                raise BadInput(
                    f"an override has {_NAMES[name]} {value!r}.", hint="Use the ranges of the configuration."
                )


@prepared
class BreakerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings beyond gateleen's.

    ``statistics="gateleen"`` counts an id that failed and then succeeded in both sets. ``locking="eager"`` locks all
    queues known to use a circuit when it opens, ``"lazy"`` each when it next delivers. Half open, ``probes`` entries
    run at a time (None: all that come) and ``successes`` of them close the circuit; a permit that nobody returned runs
    out after ``permit_ms``. ``ramp_up`` unlocks 1, 2, 4, … queues per interval after a circuit has closed. ``circuits``
    has overrides by circuit name.
    """

    statistics: Literal["distinct", "gateleen"] = "distinct"
    locking: Literal["lazy", "eager"] = "lazy"
    probes: int | None = 1
    successes: int = 1
    permit_ms: int = 180_000
    ramp_up: bool = False
    log_payload: bool = True
    circuits: dict[str, Override] = {}

    def __post_init__(self) -> None:
        """Refuse what could never work."""
        if self.statistics not in ("distinct", "gateleen") or self.locking not in ("lazy", "eager"):
            raise BadInput(
                f"BreakerSettings(statistics={self.statistics!r}, locking={self.locking!r}) is unknown.",
                hint='statistics is "distinct" or "gateleen", locking is "lazy" or "eager".',
            )
        if self.probes is not None and self.probes < 1:
            raise BadInput(f"BreakerSettings(probes={self.probes}) would never close a circuit.", hint="Use 1 or more.")
        if self.successes < 1 or self.permit_ms < 1:
            raise BadInput("BreakerSettings needs successes and permit_ms of 1 or more.", hint="Leave them out.")
        if max(self.successes, self.permit_ms, self.probes or 0) > LARGEST:
            raise BadInput("BreakerSettings has a number that is too large.", hint=f"Use at most {LARGEST:,}.")

    @classmethod
    def gateleen(cls) -> BreakerSettings:
        """As gateleen behaves: both sets, every delivery runs while half open, one success closes."""
        return cls(statistics="gateleen", probes=None)

    def applied_to(self, circuit: str, config: BreakerConfig) -> BreakerConfig:
        """The configuration as it holds for one circuit."""
        override = self.circuits.get(circuit)
        if override is None:
            return config
        changes = {name: value for name in override.__struct_fields__ if (value := getattr(override, name)) is not None}
        return msgspec.structs.replace(config, **changes)


def check_together(config: BreakerConfig, settings: BreakerSettings) -> list[str]:
    """What would silently keep a circuit from opening or queues locked; gateleen accepts it, so it is not an error."""
    said = []
    if config.circuit_check_enabled:
        said += [
            f"{_NAMES[name]} is off: {what} until it is done by hand"
            for name, what in (
                ("open_to_half_open", "open circuits stay open"),
                ("unlock_queues", "queues stay locked"),
            )
            if not getattr(config, name).enabled
        ]
    for circuit in ("", *settings.circuits):
        mine = settings.applied_to(circuit, config)
        if mine.max_queue_sample_count < mine.min_queue_sample_count:
            said.append(
                f"{circuit or 'the breaker'}: maxQueueSampleCount {mine.max_queue_sample_count} is below "
                f"minQueueSampleCount {mine.min_queue_sample_count}, so failures alone can never open a circuit"
            )
    return said
