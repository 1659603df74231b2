"""The application as a Django project: at most three items, with the lock and without.

``scripts/demo --framework django`` shows it in several workers. It runs by itself, too:
``python -m demo.django migrate --run-syncdb`` and ``python -m demo.django runserver``, or with
``uvicorn demo.django.asgi:application --workers 4``.
"""
