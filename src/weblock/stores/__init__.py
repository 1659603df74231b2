"""The engines. Each is one module or package; ``url`` lists them by the scheme of a URL."""
