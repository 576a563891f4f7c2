"""`make docs-reference`: pages and man pages that are generated from the program itself.

`commands` reads the argument parser, `settings` and `chart_config` the structs of the configuration, `chart_values` the
values of the chart. The results are committed; a test compares them with the program, so that a page cannot be stale.
"""
