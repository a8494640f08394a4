"""Queue stores that are still to become drivers, imported only when a URL asks for them."""
