"""The pages of the shop."""

from __future__ import annotations

from django.contrib import admin
from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path
from examples.django_shop.tasks import welcome


def order(request: HttpRequest, customer: str) -> JsonResponse:
    """Take an order; its task is put with the transaction."""
    with transaction.atomic():
        result = welcome.enqueue(customer)
    return JsonResponse({"task": result.id})


urlpatterns = [path("orders/<str:customer>", order), path("admin/", admin.site.urls)]
