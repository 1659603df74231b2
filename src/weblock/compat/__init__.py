"""The locks of other libraries, as they are called there."""
