"""A Django project whose tasks are kept in its own database.

SHOP_FOLDER=/tmp python -m examples.django_shop.manage migrate
SHOP_FOLDER=/tmp python -m examples.django_shop.manage runserver
SHOP_FOLDER=/tmp python -m examples.django_shop.manage penstock worker
"""
