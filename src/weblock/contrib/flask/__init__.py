"""Flask: ``locks = WebLock(app, "redis://...")``, then ``@locks.lock("item:{item_id}")`` on views."""

from ..._requirements import require

require("weblock.contrib.flask", "flask")

from .extension import WebLock  # noqa: E402 - only what fits can be imported
from .views import lease_of  # noqa: E402

__all__ = ["WebLock", "lease_of"]
