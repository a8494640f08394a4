"""Django: a Tasks backend on SQLite and PostgreSQL, puts inside atomic, connections that heal, command and admin."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from asgiref.sync import sync_to_async
from tests.docs.pages import ROOT

import penstock
from penstock.errors import BadInput, Unsupported

BOTH = ["default", "postgres"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, servers: Callable[[str], Any]) -> Iterator[Any]:
    """The example project, migrated, on a file and on a server."""
    folder = tmp_path_factory.mktemp("django")
    os.environ["SHOP_FOLDER"] = str(folder)
    os.environ["SHOP_POSTGRES"] = servers("postgres").url
    os.environ["DJANGO_SETTINGS_MODULE"] = "examples.django_shop.settings"
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    call_command("migrate", verbosity=0, database="postgres")
    from examples.django_shop import tasks

    yield tasks
    from django.db import connections

    from penstock.integrations.django.backend import close_stores

    close_stores()
    connections.close_all()


@pytest.fixture
def api(project: Any) -> Any:
    from penstock.integrations.django import tasks_api

    return tasks_api


@pytest.fixture(params=BOTH)
def backend(request: pytest.FixtureRequest, api: Any) -> Any:
    """A backend whose queues are empty."""
    made = api.tasks.task_backends[request.param]
    for entry in made.family.find():
        made.family.cancel(entry.id)
    made.register()
    return made


def drain(backend: Any) -> int:
    return penstock.Worker(backend.register(), [backend.family]).drain()


def test_a_task_runs_and_its_result_can_be_asked_for(project: Any, api: Any, backend: Any) -> None:
    project.sent.clear()
    result = project.welcome.using(backend=backend.alias).enqueue("ann", copies=2)
    assert (result.status, result.args, result.kwargs) == ("READY", ["ann"], {"copies": 2})
    assert len(result.id) < 64
    assert drain(backend) == 1
    assert project.sent == ["ann", "ann"]
    result.refresh()
    assert result.status == api.TaskResultStatus.SUCCESSFUL
    assert result.return_value == {"to": "ann", "copies": 2}
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert (result.attempts, result.errors) == (1, [])
    assert result.started_at == result.last_attempted_at


class Returning:
    """In place of a task: it returns one value after the other."""

    takes_context = False
    module_path = "shop.tasks.returning"

    def __init__(self, *values: Any) -> None:
        self.values = list(values)

    def call(self, *_: Any, **__: Any) -> Any:
        return self.values.pop(0)


def test_a_task_that_is_replayed_returns_another_value(
    project: Any, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Returning("first", "second")
    monkeypatch.setattr("penstock.integrations.django.calls.find_task", lambda _: task)
    result = project.welcome.using(backend=backend.alias).enqueue("ann")
    drain(backend)
    assert backend.get_result(result.id).return_value == "first"
    backend.family.replay(result.id)
    drain(backend)
    again = backend.get_result(result.id)
    assert (again.status, again.return_value, again.errors) == ("SUCCESSFUL", "second", [])


def test_a_value_that_is_too_large_is_not_kept_and_the_task_not_repeated(
    project: Any, backend: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    task = Returning("x" * 400_000)
    monkeypatch.setattr("penstock.integrations.django.calls.find_task", lambda _: task)
    result = project.welcome.using(backend=backend.alias).enqueue("ann")
    assert drain(backend) == 1
    assert task.values == [], "it ran once"
    stored = backend.get_result(result.id)
    assert (stored.status, stored.return_value) == ("SUCCESSFUL", None)
    assert "is not kept" in caplog.text


def test_a_task_that_fails_has_its_errors_with_tracebacks(project: Any, api: Any, backend: Any) -> None:
    result = project.fail.using(backend=backend.alias).enqueue("away")
    limit = backend.retry.attempts
    for _ in range(limit):
        drain(backend)
        for entry in backend.family.find():
            backend.family.reschedule(entry.id, delay="0s")
    result.refresh()
    assert result.status == api.TaskResultStatus.FAILED
    assert [error.exception_class for error in result.errors] == [ConnectionError] * limit
    assert "away" in result.errors[0].traceback
    assert result.attempts == limit
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value


def test_waiting_and_running_are_told_apart(project: Any, api: Any, backend: Any) -> None:
    later = project.welcome.using(backend=backend.alias, run_after=_in_an_hour()).enqueue("ann")
    now = project.welcome.using(backend=backend.alias).enqueue("ben")
    assert drain(backend) == 1
    assert backend.get_result(later.id).status == api.TaskResultStatus.READY
    assert backend.get_result(now.id).is_finished
    unit = backend.store.unit()
    running = project.welcome.using(backend=backend.alias, queue_name="q").enqueue("cem")
    with unit:
        unit.take(backend.store.queue(f"{backend.prefix}q"))
        stored = backend.get_result(running.id)
        assert (stored.status, stored.attempts) == (api.TaskResultStatus.RUNNING, 1)
        unit.rollback()
    backend.family.cancel(running.id)
    assert backend.get_result(running.id).status == api.TaskResultStatus.FAILED


def _in_an_hour() -> Any:
    from django.utils import timezone

    return timezone.now() + timedelta(hours=1)


def test_async_tasks_and_tasks_with_a_context(project: Any, backend: Any) -> None:
    report = project.report.using(backend=backend.alias).enqueue("monday")
    counted = project.count_attempts.using(backend=backend.alias).enqueue()
    assert [entry.priority for entry in backend.family.find()] == [7, 0]
    assert drain(backend) == 2
    assert backend.get_result(report.id).return_value == "report of monday"
    assert backend.get_result(counted.id).return_value == 1


def test_async_programs_enqueue_and_ask(project: Any, backend: Any) -> None:
    from asgiref.sync import async_to_sync

    async def main() -> str:
        result = await project.welcome.using(backend=backend.alias).aenqueue("ann")
        return str((await project.welcome.using(backend=backend.alias).aget_result(result.id)).status)

    assert async_to_sync(main)() == "READY"


def test_a_task_lives_and_dies_with_the_transaction(project: Any, api: Any, backend: Any) -> None:
    from django.db import transaction

    task = project.welcome.using(backend=backend.alias)
    with transaction.atomic(using=backend.database):
        undone = task.enqueue("undone")
        assert backend.get_result(undone.id).status == api.TaskResultStatus.READY
        transaction.set_rollback(True, using=backend.database)
    with transaction.atomic(using=backend.database):
        task.enqueue("kept")
        with transaction.atomic(using=backend.database):
            task.enqueue("inner")
            transaction.set_rollback(True, using=backend.database)
        assert backend.store.counts(f"{backend.prefix}default")[0].ready == 0
    assert [entry.value.args for entry in backend.family.find()] == [["kept"]]
    with pytest.raises(api.exceptions.TaskResultDoesNotExist):
        backend.get_result(undone.id)


def test_without_autocommit_a_task_lives_and_dies_with_the_transaction(project: Any, api: Any, backend: Any) -> None:
    from django.db import transaction

    task = project.welcome.using(backend=backend.alias)
    transaction.set_autocommit(False, using=backend.database)
    try:
        undone = task.enqueue("undone")
        assert backend.get_result(undone.id).status == api.TaskResultStatus.READY
        transaction.rollback(using=backend.database)
        task.enqueue("kept")
        assert backend.store.counts(f"{backend.prefix}default")[0].ready == 0
        transaction.commit(using=backend.database)
    finally:
        transaction.set_autocommit(True, using=backend.database)
    assert [entry.value.args for entry in backend.family.find()] == [["kept"]]
    with pytest.raises(api.exceptions.TaskResultDoesNotExist):
        backend.get_result(undone.id)


def test_a_store_elsewhere_gets_the_task_after_the_commit(project: Any, api: Any) -> None:
    from django.db import transaction

    backend = api.tasks.task_backends["elsewhere"]
    task = project.welcome.using(backend="elsewhere")
    with transaction.atomic():
        task.enqueue("kept")
        assert backend.family.find() == []
    with transaction.atomic():
        task.enqueue("undone")
        transaction.set_rollback(True)
    assert [entry.value.args for entry in backend.family.find()] == [["kept"]]


def test_a_store_elsewhere_cannot_know_of_a_commit_without_autocommit(project: Any, api: Any) -> None:
    from django.db import transaction

    backend = api.tasks.task_backends["elsewhere"]
    task = project.welcome.using(backend="elsewhere")
    transaction.set_autocommit(False)
    try:
        with pytest.raises(Unsupported, match=r"autocommit off.*atomic\(\)"):
            task.enqueue("early")
        transaction.rollback()
        with transaction.atomic():
            task.enqueue("in atomic")
        assert ["in atomic"] not in [entry.value.args for entry in backend.family.find()]
        transaction.commit()
    finally:
        transaction.set_autocommit(True)
    found = [entry.value.args for entry in backend.family.find()]
    assert ["in atomic"] in found
    assert ["early"] not in found


@pytest.fixture
def told(api: Any) -> Iterator[list[tuple[str, str]]]:
    """The signals that were sent, with the status of their results."""
    heard: list[tuple[str, str]] = []
    names = ("task_enqueued", "task_started", "task_finished")
    for name in names:
        signal = getattr(api.signals, name)
        signal.connect(
            lambda sender, task_result, name=name, **_: heard.append((name, str(task_result.status))),
            weak=False,
            dispatch_uid=name,
        )
    yield heard
    for name in names:
        getattr(api.signals, name).disconnect(dispatch_uid=name)


def test_signals_tell_of_every_step(project: Any, backend: Any, told: list[tuple[str, str]]) -> None:
    project.welcome.using(backend=backend.alias).enqueue("ann")
    drain(backend)
    assert told == [("task_enqueued", "READY"), ("task_started", "RUNNING"), ("task_finished", "SUCCESSFUL")]


@pytest.mark.parametrize(
    ("parcel", "status", "last"),
    [
        ("no such parcel", "FAILED", ("task_finished", "FAILED")),  # a dead letter at once, whatever attempts are left
        ("not ready", "READY", ("task_started", "RUNNING")),  # it has not finished, be it the last attempt
    ],
)
def test_a_task_may_say_what_becomes_of_it(
    project: Any, api: Any, backend: Any, told: list[tuple[str, str]], parcel: str, status: str, last: tuple[str, str]
) -> None:
    result = project.collect.using(backend=backend.alias).enqueue(parcel)
    handler = backend.register().handlers[backend.family.name, True]
    before, handler.retry = handler.retry, penstock.Retry(attempts=1 if parcel == "not ready" else 5)
    try:
        drain(backend)
    finally:
        handler.retry = before
    assert str(backend.get_result(result.id).status) == status
    assert told[-1] == last
    assert len(told) == (3 if status == "FAILED" else 2)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"priority": 101}, "between -100 and 100"),
        ({"priority": 1.5}, "whole number"),
        ({"queue_name": "no such/queue"}, "not allowed"),
        ({"backend": "elsewhere", "queue_name": "reports"}, "not valid for backend"),
        ({"run_after": "naive"}, "aware datetime"),
    ],
)
def test_what_cannot_be_a_task_is_refused_as_django_refuses_it(
    project: Any, api: Any, changes: dict[str, Any], said: str
) -> None:
    if "run_after" in changes:
        changes = {"run_after": _in_an_hour().replace(tzinfo=None)}
    with pytest.raises(api.InvalidTask, match=said):
        project.welcome.using(**changes)


def test_only_functions_of_modules_and_known_backends_make_tasks(project: Any, api: Any) -> None:
    def inner() -> None: ...

    for function in (inner, lambda: None, print.__call__):
        with pytest.raises((api.InvalidTask, TypeError), match=r"module level|callable|function"):
            api.tasks.task(function)
    with pytest.raises(Exception, match="nowhere"):
        project.welcome.using(backend="nowhere")
    with pytest.raises(TypeError, match="not callable"):
        project.welcome("ann")


def test_arguments_that_are_no_json_and_results_of_other_tasks_are_refused(project: Any, api: Any) -> None:
    with pytest.raises(TypeError, match="Unsupported type"):
        project.welcome.enqueue(object())
    result = project.welcome.enqueue("ann")
    with pytest.raises(api.exceptions.TaskResultMismatch):
        project.fail.get_result(result.id)
    with pytest.raises(api.exceptions.TaskResultDoesNotExist):
        project.fail.get_result("none")


def test_a_connection_that_the_server_ended_heals_with_the_next_entry(project: Any) -> None:
    from django.db import connections

    from penstock.integrations.django.connections import FreshConnections

    queues = penstock.Queues(middleware=[FreshConnections()])
    numbers, answers = queues.queue("numbers", int), []

    @numbers.handler(retry=penstock.Retry(attempts=1))
    def ask(number: int) -> None:
        with connections["postgres"].cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            answers.append(cursor.fetchone()[0])

    with queues.open("memory://") as store:
        numbers.put(1)
        penstock.Worker(store).drain()
        end_session(answers[0])
        for number in (2, 3):
            numbers.put(number)
            penstock.Worker(store).drain()
        assert numbers.dead() == []
    assert len(set(answers)) == 2


def test_a_connection_of_async_handlers_heals_too(project: Any) -> None:
    from django.contrib.auth.models import Permission
    from django.db import connections

    from penstock.integrations.django.connections import FreshConnections

    queues = penstock.Queues(middleware=[FreshConnections()])
    numbers, answers = queues.queue("numbers", int), []

    def backend_pid() -> int:
        with connections["postgres"].cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            return int(cursor.fetchone()[0])

    @numbers.handler(retry=penstock.Retry(attempts=1))
    async def ask(number: int) -> None:
        assert await Permission.objects.using("postgres").aexists()
        answers.append(await sync_to_async(backend_pid)())
        if number == 1:
            end_session(answers[0])

    with queues.open("memory://") as store:
        numbers.put_many([1, 2, 3])
        penstock.Worker(store).drain()
        assert numbers.dead() == []
    assert len(answers) == 3
    assert answers[0] not in answers[1:]


@pytest.mark.parametrize("database", BOTH)
def test_a_drain_inside_a_transaction_leaves_it_alone(project: Any, database: str) -> None:
    """As in a TestCase, where the test, the task and what it wrote are one transaction."""
    from django.contrib.auth.models import Group
    from django.db import connections, transaction
    from django.test.utils import CaptureQueriesContext

    from penstock.integrations.django.connections import FreshConnections

    groups = Group.objects.using(database)
    names = penstock.Queues(middleware=[FreshConnections()])
    queue = names.queue("names", str)

    @queue.handler(retry=penstock.Retry(attempts=1))
    def make(name: str) -> None:
        groups.create(name=name + str(groups.count()))

    groups.all().delete()
    with names.open("memory://") as store, transaction.atomic(using=database):
        groups.create(name="first")
        queue.put("then ")
        with CaptureQueriesContext(connections[database]) as captured:
            penstock.Worker(store).drain()
        assert queue.dead() == []
        assert sorted(group.name for group in groups.all()) == ["first", "then 1"]
        assert len(captured) == 2
        transaction.set_rollback(True, using=database)
    assert not groups.filter(name="first").exists()


def end_session(pid: int) -> None:
    """Let the server end a session of a client that does not know."""
    with psycopg.connect(os.environ["SHOP_POSTGRES"], autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(%s)", (pid,))


def manage(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "examples.django_shop.manage", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_command_handles_what_is_due(project: Any, api: Any) -> None:
    backend = api.tasks.task_backends["default"]
    result = project.welcome.enqueue("ann")
    said = manage("penstock", "worker", "--drain")
    assert said.returncode == 0, said.stderr
    assert "handled" in said.stdout
    assert backend.get_result(result.id).is_finished
    assert "No changes detected" in manage("makemigrations", "--check").stdout


def test_nothing_is_made_by_importing_and_checking(
    tmp_path: Path, project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_FOLDER", str(tmp_path))
    monkeypatch.delenv("SHOP_POSTGRES")
    assert "no issues" in manage("check").stdout
    assert list(tmp_path.iterdir()) == []


def test_a_database_in_memory_is_migrated_and_a_task_says_what_is_missing(project: Any, tmp_path: Path) -> None:
    """As Django's own test runner makes it of a file: tests without tasks pass."""
    code = """
import django
from django.conf import settings
from examples.django_shop import settings as shop

settings.configure(**{name: getattr(shop, name) for name in dir(shop) if name.isupper()})
settings.DATABASES["default"]["NAME"] = "file:memorydb_default?mode=memory&cache=shared"
django.setup()
from django.core.management import call_command
from examples.django_shop.tasks import welcome

import penstock

call_command("migrate", verbosity=0)
call_command("check")  # the test runner does that after it has made the database
try:
    welcome.enqueue("ann")
except penstock.errors.BadInput as error:
    print(error)
"""
    environment = {name: value for name, value in os.environ.items() if name not in ("SHOP_POSTGRES", "SHOP_FOLDER")}
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**environment, "SHOP_FOLDER": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "penstock.W002" in run.stderr
    assert "is in memory" in run.stdout
    assert '{"TEST": {"NAME":' in run.stdout


def test_the_admin_leads_to_the_dashboard_who_may_see_it(project: Any) -> None:
    from django.contrib.auth.models import Permission, User
    from django.test import Client

    User.objects.filter(username__in=["ann", "ben"]).delete()
    for name in ("ann", "ben"):
        user = User.objects.create_user(name, is_staff=True)
        client = Client()
        client.force_login(user)
        assert client.get("/admin/penstock/dashboard/").status_code == 403
    user.user_permissions.add(Permission.objects.get(codename="view_dashboard"))
    assert "dashboard of queues" in client.get("/admin/").content.decode().lower()
    answer = client.get("/admin/penstock/dashboard/")
    assert (answer.status_code, answer.headers["location"]) == (302, "https://ops.shop.example/")


def test_the_page_of_the_example_enqueues(project: Any, api: Any) -> None:
    from django.test import Client

    id_ = Client().get("/orders/ann").json()["task"]
    assert api.tasks.task_backends["default"].get_result(id_).args == ["ann"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"databse": "default"}, "unknown"),
        ({"url": "memory://", "space": "x"}, "into the url"),
    ],
)
def test_settings_that_cannot_work_are_refused(project: Any, options: dict[str, Any], said: str) -> None:
    from penstock.integrations.django.backend import TaskBackend

    with pytest.raises(BadInput, match=said):
        TaskBackend("default", {"OPTIONS": options})


def test_databases_whose_transactions_cannot_be_joined_are_named(project: Any) -> None:
    from penstock.integrations.django.location import database_url

    with pytest.raises(BadInput, match=r"engine django\.db\.backends\.mysql"):
        database_url("default", {"ENGINE": "django.db.backends.mysql", "NAME": "shop"}, {})
    with pytest.raises(BadInput, match="in memory"):
        database_url("default", {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}, {})
    settings = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "shop",
        "USER": "a b",
        "PASSWORD": "p@ss",
        "HOST": "db",
    }
    assert database_url("default", settings, {"space": "tasks"}) == "postgresql://a%20b:p%40ss@db/shop?space=tasks"


def test_a_store_that_is_down_is_an_error_at_the_first_use_only(project: Any, free_port: int) -> None:
    from penstock.integrations.django.backend import TaskBackend

    url = f"postgresql://shop@127.0.0.1:{free_port}/shop?timeout=1"
    backend = TaskBackend("down", {"QUEUES": [], "OPTIONS": {"url": url}})
    assert list(backend.check()) == []
    with pytest.raises((penstock.errors.StoreUnavailable, penstock.errors.CannotOpen)):
        backend.enqueue(project.welcome, ("ann",), {})
