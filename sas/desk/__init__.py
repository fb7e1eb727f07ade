"""The desk: a page on the operator's own machine that shows orders and acts on them."""
