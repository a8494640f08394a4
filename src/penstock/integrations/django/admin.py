"""The link to the dashboard in Django's admin; ``PENSTOCK_DASHBOARD_URL`` says where the service is."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

from penstock.integrations.django.dashboard import Dashboard


@admin.register(Dashboard)
class DashboardAdmin(admin.ModelAdmin):  # type: ignore[misc]
    """One entry of the index, for those with the permission to view it."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nothing can be added."""
        return False

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Go to the dashboard."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        address = getattr(settings, "PENSTOCK_DASHBOARD_URL", None)
        if address:
            return redirect(address)
        messages.warning(request, "Set PENSTOCK_DASHBOARD_URL to the address of `penstock serve`.")
        return redirect("admin:index")
