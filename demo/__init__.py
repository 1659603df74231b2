"""A web application that breaks its own bound, and keeps it with one line of weblock."""
