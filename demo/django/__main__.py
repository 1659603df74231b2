"""What ``manage.py`` is elsewhere: ``python -m demo.django runserver``, ``... weblock list``."""

from __future__ import annotations

import os
import sys

from django.core.management import execute_from_command_line

os.environ["DJANGO_SETTINGS_MODULE"] = "demo.django.settings"  # Whatever the shell says.
execute_from_command_line(["python -m demo.django", *sys.argv[1:]])
