"""Queue stores: one module or package per kind, imported only when a URL asks for it; ``version`` serves them all."""
