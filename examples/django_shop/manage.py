"""The command line of the project."""

import os
import sys
from pathlib import Path

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the root of the checkout, for `examples.django_shop`
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "examples.django_shop.settings")
    execute_from_command_line(sys.argv)
