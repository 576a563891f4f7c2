"""`make docs-reference`: pages and man pages that are generated from the program itself.

`commands` reads the argument parser, `settings` the structs of the configuration. The results are committed; a test
compares them with the program, so that a page cannot be stale.
"""
