"""Makes the README fit for a package page, where links into the checkout lead nowhere."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK_INTO_CHECKOUT = re.compile(r"\]\((?![a-z]+:|#)([^)]+)\)")


class ReadmeWithAbsoluteLinks(MetadataHookInterface):
    """Has links into the checkout lead to the released version, at the home that pyproject.toml names."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the package's long description to its metadata."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        home = f"{metadata['urls']['Source']}/blob/v{metadata['version']}"
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": _LINK_INTO_CHECKOUT.sub(rf"]({home}/\1)", text),
        }
