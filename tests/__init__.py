"""The tests, in folders that mirror those of the package.

What all of them share stands here: `oracle`, the formulas by plain loops in float64; `cases`, the families with graphs
that they take; `contract`, what every family promises. A folder may have an `oracle` and `cases` of its own. The files
named `test_bites` break the package, and see that the tests notice.
"""
