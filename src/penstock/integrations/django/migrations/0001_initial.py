"""The permission to see the dashboard."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):  # type: ignore[misc]
    """A model without a table."""

    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar[list[object]] = [
        migrations.CreateModel(
            name="Dashboard",
            fields=[
                ("id", models.BigAutoField(primary_key=True, auto_created=True, serialize=False, verbose_name="ID"))
            ],
            options={
                "verbose_name": "dashboard of queues",
                "verbose_name_plural": "dashboard of queues",
                "managed": False,
                "default_permissions": ("view",),
            },
        ),
    ]
