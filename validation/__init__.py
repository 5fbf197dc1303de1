"""Comparisons with references and other programs; `make validate` prints them, the tests assert them."""
