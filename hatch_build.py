"""Makes the README fit for a package page, where links into the checkout lead nowhere."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_IMAGE_IN_CHECKOUT = re.compile(r"(!\[[^\]]*\])\((?![a-z]+:)([^)]+)\)")
_LINK_INTO_CHECKOUT = re.compile(r"\]\((?![a-z]+:|#)([^)]+)\)")


class ReadmeWithAbsoluteLinks(MetadataHookInterface):
    """Points links and images into the checkout to the released version, at the home in pyproject.toml."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the package's long description to its metadata."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        source, tag = metadata["urls"]["Source"], f"v{metadata['version']}"
        text = _IMAGE_IN_CHECKOUT.sub(rf"\1({source}/raw/{tag}/\2)", text)
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": _LINK_INTO_CHECKOUT.sub(rf"]({source}/blob/{tag}/\1)", text),
        }
