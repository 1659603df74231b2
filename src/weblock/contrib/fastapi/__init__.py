"""FastAPI: ``Depends(lock("item:{item_id}"))``, after ``install(app, "redis://...")``."""

from .dependency import Lock, lock
from .installation import install

__all__ = ["Lock", "install", "lock"]
