"""The engines. Each is one module or package; ``url`` finds them by the scheme of a URL."""
