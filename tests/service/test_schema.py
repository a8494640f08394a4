"""The whole API against its own OpenAPI: made-up requests find no 500 and no answer that is not described."""

from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from penstock import open_logs, open_queues
from penstock.service import ServiceSettings, create_app

# Without keys the service is for this machine only.
HERE = {"host": "127.0.0.1"}
CHECKS = (not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("api")
    with (
        open_queues(f"sqlite:///{folder}/q.db?durability=fast") as queues,
        open_logs(f"file://{folder}/logs?durability=fast") as logs,
    ):
        logs.create("log", 2)
        logs.log("log").append_many([{"n": n} for n in range(20)])
        queues.queue("queue").put_many(range(20))
        app = create_app(ServiceSettings(queues=queues.name), queues, logs)
        yield schemathesis.openapi.from_asgi("/openapi.json", app, headers=HERE)


# The stream of signals does not end.
ENDLESS = "/v1/signals"


def test_no_request_finds_a_hole(api: Any, subtests: pytest.Subtests) -> None:
    asked = 0
    for found in api.get_all_operations():
        operation = found.ok()
        if operation.path == ENDLESS:
            continue
        with subtests.test(operation.label):
            asked += 1
            ask(operation)
    assert asked > 35


def ask(operation: Any) -> None:
    @given(operation.as_strategy())
    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
    def one(case: Any) -> None:
        if "wait" in (case.query or {}):
            case.query["wait"] = 0
        for name in ("queue", "log"):  # half of the time: names that are there
            given_name = str((case.path_parameters or {}).get(name, ""))
            if len(given_name) % 2:
                case.path_parameters[name] = name
        case.validate_response(case.call(headers=HERE), checks=CHECKS)

    one()
