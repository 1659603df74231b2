"""Its WSGI and ASGI applications."""

from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application

wsgi = get_wsgi_application()
asgi = get_asgi_application()
