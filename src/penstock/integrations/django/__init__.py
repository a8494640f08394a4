"""Django: a backend for Tasks on Penstock's queues, puts inside ``atomic``, a worker command, and a link in the admin.

    INSTALLED_APPS = [..., "penstock.integrations.django"]
    TASKS = {"default": {"BACKEND": "penstock.integrations.django.backend.TaskBackend", "QUEUES": [],
                         "OPTIONS": {"database": "default"}}}

apps         the application for INSTALLED_APPS
backend      TaskBackend: enqueue, results, checks
calls        a task on its way through a queue, and its handler
results      what the store knows of a task, as Django's TaskResult
location     from the settings of a backend or a database to the URL of a store
tasks_api    Django's own tasks, or their backport
connections  database connections looked after around every handler
dashboard    the model behind the link in the admin
admin        that link
migrations/  the permission to see it
management/  ``manage.py penstock``
"""

from penstock.integrations.requirement import required

required("django", extra="django")
