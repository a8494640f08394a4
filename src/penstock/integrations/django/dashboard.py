"""The model behind the link to the dashboard in the admin: it has a permission and no table."""

from __future__ import annotations

from django.db import models


class Dashboard(models.Model):  # type: ignore[misc]
    """Where queues are looked at."""

    class Meta:
        """No table."""

        app_label = "penstock"
        managed = False
        default_permissions = ("view",)
        verbose_name = "dashboard of queues"
        verbose_name_plural = "dashboard of queues"
